"""Variables of the environment replace keys of the file; doubtful keys are warned of; some keys are reloadable."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from warmpath.router import serve
from warmpath.router.config.mistakes import dotted, doubts, overrides, replaced
from warmpath.router.config.read import ConfigError, load, mistakes, parse
from warmpath.router.config.schema import Config, Table
from warmpath.router.reload import differing, is_reloadable, reloaded

MODEL = '[[models]]\nname = "m"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "warmpath.toml"
    path.write_text(f'[server]\nlisten = "127.0.0.1:1"\n{MODEL}', encoding="utf-8")
    return path


def problems(file: Path, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(file, environment)
    return list(raised.value.problems)


def test_a_variable_goes_before_the_file_and_the_file_before_the_default(file: Path) -> None:
    config = load(file, {"WARMPATH_SERVER__METRICS_LISTEN": "127.0.0.1:2"})
    assert (config.server.listen, config.server.metrics_listen) == ("127.0.0.1:1", "127.0.0.1:2")
    assert load(file, {"WARMPATH_SERVER__LISTEN": "unix:/a"}).server.listen == "unix:/a"
    assert load(file).server.metrics_listen == "127.0.0.1:7401"


def test_values_are_typed_as_the_file_types_them(file: Path) -> None:
    config = load(
        file,
        {
            "WARMPATH_PICK__KEPT_DECISIONS": "3", "WARMPATH_PICK__QUEUE": "on",
            "WARMPATH_PICK__OPTIONS": "{ kappa = 0.2 }", "WARMPATH_SERVER__READY": '["pods"]',
            "WARMPATH_EVENTS__TRUSTED_NETWORK": "true", "WARMPATH_INDEX__HASH_SEED": "12",
            "WARMPATH_SERVER__HTTP2__MAX_STREAMS": "7",
            "WARMPATH_PODS": '[{id = "a", model = "m", address = "h:1"}]',
        },
    )  # fmt: skip
    assert config.pick.kept_decisions == 3
    assert config.pick.queue == "on"
    assert config.pick.options == {"kappa": 0.2}
    assert config.server.ready == ("pods",)
    assert config.events.trusted_network is True
    assert config.index.hash_seed == "12"
    assert config.server.http2.max_streams == 7
    assert [pod.id for pod in config.pods] == ["a"]


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"WARMPATH_POD": "x"}, "WARMPATH_POD: names no key; did you mean WARMPATH_PODS?"),
        ({"WARMPATH_SERVER_LISTEN": "h:1"}, "WARMPATH_SERVER_LISTEN: names no key; did you mean WARMPATH_SERVER__LISTEN?"),
        ({"WARMPATH_UNHEARD__OF": "1"}, "WARMPATH_UNHEARD__OF: names no key; docs/reference/config.md has every key"),
        # It looks like a key, and is not ignored.
        ({"WARMPATH_TRANSPORT": "grpcio"}, "WARMPATH_TRANSPORT: names no key; did you mean WARMPATH_SERVER__TRANSPORT?"),
        # A wrong value is a mistake of its variable, and its text does not show.
        ({"WARMPATH_SERVER__PROCESSES": "one"}, "WARMPATH_SERVER__PROCESSES: server.processes: is not the TOML of one value"),
        ({"WARMPATH_SERVER__PROCESSES": "1\ninsecure = true"}, "WARMPATH_SERVER__PROCESSES: server.processes: is not the TOML of one value"),
        ({"WARMPATH_SERVER__PROCESSES": "0"}, "WARMPATH_SERVER__PROCESSES: server.processes: is 0, must be at least 1"),
        # A contradiction names it, too.
        ({"WARMPATH_SERVER__LISTEN": "0.0.0.0:1"}, "WARMPATH_SERVER__LISTEN: server.listen: 0.0.0.0:1 is reached by other machines: it needs [server.tls] and [[clients]], or server.insecure = true"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_variable(
    file: Path, environment: dict[str, str], problem: str
) -> None:
    assert problems(file, **environment) == [problem]


def test_mistakes_of_several_variables_are_named_together(file: Path) -> None:
    told = problems(file, WARMPATH_SERVER_LISTEN="h:1", WARMPATH_POD="x")
    assert [one.partition(":")[0] for one in told] == ["WARMPATH_POD", "WARMPATH_SERVER_LISTEN"]


def test_variables_of_kubernetes_services_and_of_the_images_are_passed_over(file: Path) -> None:
    load(
        file,
        {
            "WARMPATH_SERVICE_HOST": "10.0.0.1", "WARMPATH_SERVICE_PORT": "7400",
            "WARMPATH_SERVICE_PORT_GRPC": "7400", "WARMPATH_PORT": "tcp://10.0.0.1:7400",
            "WARMPATH_PORT_7400_TCP_ADDR": "10.0.0.1", "WARMPATH_METRICS_SERVICE_HOST": "10.0.0.2",
            "WARMPATH_REVISION": "abc", "PATH": "/bin",
        },
    )  # fmt: skip


def test_every_key_that_a_variable_replaces_is_told(file: Path) -> None:
    found = mistakes(file, {"WARMPATH_PICK__POLICY": "round-robin", "HOME": "/"}).overrides
    assert [(one.variable, one.at, one.value) for one in found] == [
        ("WARMPATH_PICK__POLICY", ("pick", "policy"), "round-robin")
    ]


@given(st.integers(-(2**40), 2**40) | st.booleans() | st.lists(st.text("ab", max_size=3)))
def test_a_variable_reads_as_the_same_text_in_the_file(value: object) -> None:
    text = str(value).lower() if isinstance(value, bool | int) else str(value)
    [found] = overrides({"WARMPATH_SERVER__PROCESSES": text})
    written = tomllib.loads(f"[server]\nprocesses = {text}")
    assert replaced({}, [found]) == written


def test_a_table_that_is_wrong_in_the_file_stays_the_mistake_of_the_file() -> None:
    found = overrides({"WARMPATH_SERVER__LISTEN": "h:1"})
    assert replaced({"server": 5}, found) == {"server": 5}


POD = MODEL + '[[pods]]\nid = "a"\nmodel = "m"\naddress = "h:1"\n'
SET = MODEL + '[[pod-sets]]\nname = "s"\nmodel = "m"\ndns = "h"\n'
SHARED = MODEL + '[shared-index]\nurl = "redis://h"\n'


def pod(name: str, *keys: str) -> str:
    return "\n".join(["[[pods]]", f'id = "{name}"', 'model = "m"', 'address = "h:1"', *keys, ""])


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            MODEL + "[limits]\nmax-prompt-bytes = 8388608\nmax-in-flight-bytes = 17825791\n",
            "limits.max-in-flight-bytes: is 17825791, less than one of the largest messages (17825792 ",
        ),
        (SHARED + "poll-seconds = 2\nstale-seconds = 1\n", "shared-index.stale-seconds: is 1, less than poll-seconds (2)"),
    ],
)  # fmt: skip
def test_what_is_hardly_meant_is_warned_of(text: str, warning: str) -> None:
    [told] = told_of(text)
    assert told.startswith(warning)


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        (SHARED + 'mode = "shared"\npoll-seconds = 2\n', "shared-index.poll-seconds", '"shared"'),
        (SHARED + "deadline-seconds = 1\n", "shared-index.deadline-seconds", '"replica"'),
        (MODEL + '[shared-index]\nprefix = "p"\n', "shared-index.prefix", "url"),
        (MODEL + "[queue]\nmax-requests = 9\n", "queue.max-requests", 'pick.queue is "off"'),
        (MODEL + "[queue]\nshares = { a = 2.0 }\n", "queue.shares", 'pick.queue is "off"'),
        (MODEL + "[server]\nready-coverage = 0.9\n", "server.ready-coverage", '"coverage"'),
        (MODEL + "[pick]\ndecision-log-share = 0.5\n", "pick.decision-log-share", "decision-log"),
        (MODEL + "[probe]\ninterval-seconds = 0\ntimeout-seconds = 9\n", "probe.timeout-seconds", "no probes"),
        (POD + "block-size = 64\n", "pods[0].block-size", "vllm"),
        (SET + 'engine = "sglang"\nblock-size = 64\n', "pod-sets[0].block-size", "sglang"),
        (SET + "watch-port = 5\nevents-port = 6\n", "pod-sets[0].events-port", "watch-port"),
        (SET + "events-port = 0\nreplay-port = 6\n", "pod-sets[0].replay-port", "events-port is 0"),
    ],
)  # fmt: skip
def test_a_key_without_effect_is_named_with_the_reason(text: str, key: str, reason: str) -> None:
    [told] = told_of(text)
    assert told.startswith(f"{key}: has no effect: ")
    assert reason in told


@pytest.mark.parametrize(
    "text",
    [
        MODEL + "[queue]\ncold-start-seconds = 60\nmax-requests = 9\nshares = { a = 2.0 }\n",
        MODEL,
        MODEL + "[limits]\nmax-in-flight-bytes = 17825792\n",
        SHARED + "poll-seconds = 2\n",
        SHARED + 'mode = "shared"\ndeadline-seconds = 1\n',
        MODEL + '[pick]\nqueue = "on"\n[queue]\nmax-requests = 9\n',
        # Engines may order prompts by it where the router holds none.
        MODEL + "[queue]\nprefill-times = 20\n",
        MODEL + '[server]\ntransport = "grpcio"\n[server.http2]\nmax-connections = 9\n',
        MODEL + '[server]\nready = ["coverage"]\nready-coverage = 0.9\n',
        POD + 'engine = "trtllm"\nblock-size = 64\n',
        SET + "watch-port = 5\nevents-port = 0\nreplay-port = 0\n",
        # In shared mode nothing is read every poll-seconds.
        SHARED + 'mode = "shared"\nstale-seconds = 0.01\n',
    ],
)  # fmt: skip
def test_what_may_well_be_meant_and_has_an_effect_is_not(text: str) -> None:
    assert not told_of(text)


def told_of(text: str) -> list[str]:
    return [f"{dotted(at)}: {doubt}" for at, doubt in doubts(parse(text, "text"))]


def test_the_routers_log_warns_at_the_start_with_the_file_and_the_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def supervised(*_: object) -> int:
        return 0

    monkeypatch.setattr(serve, "_supervise", supervised)
    file = tmp_path / "warmpath.toml"
    file.write_text(
        '[server]\nlisten = "127.0.0.1:1"\nprocesses = 2\n' + MODEL + "[queue]\nmax-bytes = 8\n"
    )
    assert serve.main(["--config", str(file)]) == 0
    line = file.read_text().splitlines().index("max-bytes = 8") + 1
    assert f"{file}:{line}: queue.max-bytes: has no effect" in caplog.text


def reloadable_keys(table: type[Table] = Config, at: str = "") -> Iterator[str]:
    """Yield all reloadable keys, dotted as in `limits.tokenize-seconds`."""
    for field in msgspec.structs.fields(table):
        if is_reloadable(field):
            yield at + field.encode_name
        elif isinstance(field.type, type) and issubclass(field.type, Table):
            yield from reloadable_keys(field.type, f"{at}{field.encode_name}.")


VALUES = {
    "server.ready": ("[]", '["pods"]', '["index", "coverage"]'),
    "server.processes": ("1", "2"),
    "server.http2.max-streams": ("5", "6"),
    "limits.tokenize-seconds": ("1", "2"),
    "limits.wait-seconds": ("1", "2"),
    "pick.options": ("{}", "{kappa = 3}"),
    "pick.queue": ('"off"', '"on"'),
    "queue.classes": ('["normal"]', '["normal", "high"]'),
}
"""Keys, each with values for it."""
FIELDS = {key: tuple(key.replace("-", "_").split(".")) for key in VALUES}


def config(values: dict[str, str]) -> Config:
    tables: dict[str, list[str]] = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        tables.setdefault(table, []).append(f"{name} = {value}")
    text = "\n".join(f"[{table}]\n" + "\n".join(lines) for table, lines in tables.items())
    return parse(f'{text}\n[[models]]\nname = "m"\n', "test")


def value(of: Config, key: str) -> object:
    found: object = of
    for field in FIELDS[key]:
        found = getattr(found, field)
    return found


VALUED = st.fixed_dictionaries({key: st.sampled_from(given) for key, given in VALUES.items()})


@settings(max_examples=examples(300), deadline=None)
@given(before=VALUED, after=VALUED)
def test_reloadable_keys_are_taken_over_and_no_others_whatever_differs(
    before: dict[str, str], after: dict[str, str]
) -> None:
    old, new = config(before), config(after)
    known = set(reloadable_keys())
    expected = {key: key in known for key in VALUES if before[key] != after[key]}
    assert dict(differing(old, new)) == expected
    merged = reloaded(old, new)
    for key in VALUES:
        assert value(merged, key) == value(new if key in known else old, key)
    assert not any(is_reloadable for _, is_reloadable in differing(merged, new))
    assert all(is_reloadable for _, is_reloadable in differing(old, merged))


def test_tables_that_repeat_are_named_as_a_whole() -> None:
    old = parse('[[models]]\nname = "m"\n', "old")
    more = '[[pods]]\nid = "a"\nmodel = "m"\naddress = "h:1"\n'
    new = parse(f'[[models]]\nname = "m"\naliases = ["n"]\n{more}', "new")
    assert dict(differing(old, new)) == {"models": False, "pods": True}
