"""What an engine says of itself decides whether its pod is ready.

One file, since all tests ask one engine.
"""

import ssl
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from tests.indexer.sides import stored
from tests.router.pods.engine import Engine
from tests.servers.certificates import Authority, Certificate
from tests.servers.http import listening
from warmpath.indexer.trust import Level
from warmpath.router.config.files import engine_credentials
from warmpath.router.config.schema import ProbeTable
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.pods.probe import LOOKS, MOST_BYTES
from warmpath.router.pods.table import Status


def shown(theirs: Certificate, asked_of: Authority | None = None) -> ssl.SSLContext:
    """Return the TLS of an engine with this certificate; callers show one of `asked_of`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    if asked_of is not None:
        context.load_verify_locations(asked_of.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(theirs.cert, theirs.key)
    return context


async def test_an_engine_with_https_is_asked_so_and_has_to_be_who_its_address_says(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    own = authority.certificate("router")
    table = ProbeTable(ca=authority.ca.name, cert=own.cert.name, key=own.key.name)
    stranger = ProbeTable(ca=authority.ca.name)
    for host, problem in (
        ("127.0.0.1", "/health answers"),
        ("127.0.0.2", "its certificate is refused"),
    ):
        async with Engine().serving(
            shown(authority.certificate("engine", host), authority)
        ) as engine:
            engine.prober.tls = engine_credentials(table, tmp_path)
            await engine.look(3)
            assert problem in engine.status.reason
            engine.prober.tls = engine_credentials(stranger, tmp_path)
            await engine.look(3)
            assert engine.status.healthy is False, "the engine wants to see a certificate"


async def test_the_next_connection_to_an_engine_is_made_with_the_newest_files(
    tmp_path: Path,
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with Engine().serving(shown(authority.certificate("engine"), authority)) as engine:
        own = other.certificate("wrong").copy("own")
        table = ProbeTable(ca=authority.ca.name, cert=own.cert.name, key=own.key.name)
        engine.prober.tls = tls = engine_credentials(table, tmp_path)
        await engine.look(3)
        assert engine.status.healthy is False
        own.replace(authority.certificate("right"))
        tls.tls.files.look()
        await engine.look()
        assert engine.status.reason == "/health answers"


async def test_engines_with_one_name_are_recognised_by_it_at_any_address(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with Engine().serving(
        shown(authority.certificate("engine", "engines.example"))
    ) as engine:
        for name, problem in (
            ("engines.example", "/health answers"),
            ("", "its certificate is refused"),
            ("other.example", "its certificate is refused"),
        ):
            table = ProbeTable(ca=authority.ca.name, server_name=name)
            engine.prober.tls = engine_credentials(table, tmp_path)
            await engine.look(3)
            assert problem in engine.status.reason


def test_credentials_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(OSError, match=r"probe\.ca: .*ca\.pem cannot be used: "):
        engine_credentials(ProbeTable(ca="ca.pem"), tmp_path)


async def test_nobody_who_listens_is_said_without_a_word_of_tls(held_port: int) -> None:
    engine = Engine()
    engine.pod.address = f"127.0.0.1:{held_port}"
    await engine.look(3)
    assert engine.status.reason.startswith(f"cannot connect to {engine.pod.address}: ")
    assert "ssl" not in engine.status.reason
    assert engine.status.healthy is False


async def test_an_engine_that_is_up_tells_its_models_and_the_size_of_its_cache(
    engine: Engine,
) -> None:
    assert engine.pod.ready, "before it is asked, its events speak for it"
    await engine.look()
    assert engine.pod.ready
    assert list(engine.status.models) == ["m", "tuned"]
    assert engine.rank.capacity == 96


async def test_one_failed_look_is_no_reason_two_are(engine: Engine) -> None:
    await engine.look()
    engine.health = 500
    await engine.look()
    assert engine.pod.ready
    await engine.look()
    assert not engine.pod.ready
    assert engine.status.reason == "/health answers 500"
    engine.health = 200
    await engine.look()
    assert engine.pod.ready


async def test_each_cause_for_which_a_pod_is_down_is_logged_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for status in (200, 500, 500, 500, 503, 503, 200):
        engine.health = status
        await engine.look()
    said = [one.message for one in caplog.records if one.message.startswith("pod p: ")]
    assert said == [
        "pod p: up: /health answers",
        "pod p: down: /health answers 500",
        "pod p: still down: /health answers 503",
        "pod p: restarted: the engine accepted no requests and accepts them again",
        "pod p: up: /health answers",
    ]


@pytest.mark.parametrize(
    "page", [b"nonsense", b"[" * 200_000 + b"]" * 200_000, b'{"data":[{"id":"\xff"}]}']
)
async def test_pages_that_cannot_be_read_are_as_good_as_none(engine: Engine, page: bytes) -> None:
    engine.models = engine.metrics = page
    engine.pod.engine = "trtllm"
    await engine.look()
    assert engine.pod.ready
    assert not engine.status.models


async def test_names_of_models_and_versions_have_a_length_and_names_a_sum(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["m", "x" * 1025, *(f"{number:01024d}" for number in range(70)), "short"]
    engine.models = msgspec.json.encode({"data": [{"id": name} for name in names]})
    engine.version = "1" * 129
    await engine.look()
    assert list(engine.status.models) == ["m", *names[2:65], "short"]
    assert "8 names in /v1/models are left out" in caplog.text
    assert not engine.status.version


LOADED = b"""vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


async def test_every_look_tells_the_load_over_one_connection(engine: Engine) -> None:
    engine.metrics += LOADED
    await engine.look(3)
    assert engine.seen == [("p", 0, Observed(3, 2, 0.25, at)) for at in (104.0, 108.0, 112.0)]
    assert engine.rank.capacity == 96, "one page tells both"
    assert engine.asked == [
        "/health", "/metrics", "/is_paused", "/is_sleeping", "/v1/models", "/version",
        "/health", "/metrics", "/health", "/metrics",
    ]  # fmt: skip
    assert len(engine.connections) == 1


async def test_an_engine_that_says_nothing_of_its_load_is_up_all_the_same(engine: Engine) -> None:
    for engine.metrics in (
        b"",
        b"\xff\x00",
        LOADED.replace(b"3.0", b"NaN").replace(b"2.0", b"-1"),
        LOADED + b" " * MOST_BYTES,
    ):
        await engine.look()
    engine.missing = {"/metrics"}
    await engine.look()
    assert engine.pod.ready
    assert not engine.seen


async def test_an_engine_that_is_not_well_is_not_asked_for_its_load(engine: Engine) -> None:
    engine.metrics, engine.health = LOADED, 500
    await engine.look()
    assert not engine.seen


async def test_where_prometheus_is_not_served_tensorrt_llms_statistics_are_read(
    engine: Engine,
) -> None:
    engine.metrics = b'[{"numActiveRequests":3,"numQueuedRequests":2}]'
    engine.missing, engine.pod.engine = {"/prometheus/metrics"}, "trtllm"
    await engine.look()
    assert engine.seen == [("p", 0, Observed(3, 2, 0.0, 104.0))]
    assert engine.asked[:3] == ["/health", "/prometheus/metrics", "/metrics"]


async def test_an_engine_that_ends_is_told_of_when_that_is_known_and_when_it_is_well_again(
    engine: Engine, held_port: int
) -> None:
    await engine.look(2)
    engine.health = 500
    await engine.look(2)
    engine.health = 200
    await engine.look()
    assert not engine.status.refuses
    assert engine.ended == [], "an engine that is slow to answer still has its cache"
    engine.health = 503
    await engine.look(2)
    assert engine.ended == ["p"], "what was sent to it is gone"
    engine.health = 200
    await engine.look(2)
    assert engine.ended == ["p"] * 2, "and so is what was sent meanwhile"
    address, engine.pod.address = engine.pod.address, f"127.0.0.1:{held_port}"
    await engine.look()
    assert engine.ended == ["p"] * 2, "one failed look is no reason"
    engine.pod.address = address
    await engine.look(2)
    assert engine.ended == ["p"] * 3
    engine.pod.address = f"127.0.0.1:{held_port}"
    await engine.look(3)
    assert engine.ended == ["p"] * 4


async def test_adapters_that_are_loaded_while_an_engine_runs_are_found_in_time(
    engine: Engine,
) -> None:
    await engine.look()
    engine.models = b'{"object":"list","data":[{"id":"m","object":"model"},{"id":"later"}]}'
    await engine.look(LOOKS - 1)
    assert engine.asked.count("/v1/models") == 1
    await engine.look()
    assert list(engine.status.models) == ["m", "later"]
    engine.missing.add("/v1/models")
    await engine.look(LOOKS)
    assert list(engine.status.models) == ["m", "later"], "what was told is kept"


async def test_an_engine_tells_its_version_and_one_that_is_not_supported_is_not_exact(
    engine: Engine,
) -> None:
    await engine.look()
    assert engine.status.version == "0.32.0"
    engine.pod.engine, engine.pod.status = "sglang", Status()
    engine.version_path, engine.version = "/server_info", "0.5.6.post2"
    engine.rank.live("", 0, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
    assert engine.trust.level is Level.EXACT
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    assert "0.5.6.post2" in engine.trust.reason


@pytest.mark.parametrize(
    "name", [
        "swa_token_usage", "swa_available_tokens", "swa_evictable_tokens",
        "mamba_usage", "mamba_available_tokens", "mamba_evictable_tokens",
    ],
)  # fmt: skip
async def test_an_sglang_that_has_a_cache_beside_the_full_one_is_not_exact(
    engine: Engine, name: str
) -> None:
    engine.pod.engine = "sglang"
    engine.rank.live("", 0, msgspec.msgpack.encode([0.0, [["AllBlocksCleared"]], 0]))
    levels = []
    for usage in (b"0.0", b"0", b"0.25", b"0.0"):
        engine.metrics = b'sglang:%s{model_name="m"} %s\n' % (name.encode(), usage)
        await engine.look()
        levels.append(engine.trust.level)
    # What was seen once holds for as long as the engine lives.
    assert levels == [Level.EXACT, Level.EXACT, Level.DEGRADED, Level.DEGRADED]
    assert "its events omit them" in engine.trust.reason


async def test_a_pod_cannot_have_other_hosts_asked(engine: Engine) -> None:
    other = engine.pod.address

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://{other}{request.path}")

    async with listening(redirect) as engine.pod.address:
        await engine.look()
    assert (engine.status.healthy, engine.status.reason) == (False, "/health answers 302")
    assert not engine.asked


SPECULATES = b"""# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 0.0
"""


def batch(**more: object) -> bytes:
    return msgspec.msgpack.encode([1.0, [stored([7], [1, 2], None, 2, **more)], 0])


async def test_an_engine_that_drafts_tokens_is_exact_only_where_its_events_tell_what_it_needs(
    engine: Engine,
) -> None:
    engine.rank.live("", 0, batch())
    await engine.look()
    assert engine.trust.level is Level.EXACT
    engine.metrics += SPECULATES
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    assert "lookahead_token_ids" in engine.trust.reason
    engine.metrics = b""  # no answer says that it has another drafter now
    await engine.look()
    assert engine.trust.level is Level.DEGRADED
    engine.pod.may_be_eagle = False
    await engine.look()
    assert engine.trust.level is Level.EXACT


async def test_an_engine_whose_events_tell_the_next_tokens_is_exact_with_a_drafter(
    engine: Engine,
) -> None:
    engine.metrics += SPECULATES
    engine.rank.live("", 0, batch(lookahead_token_ids=[[3]]))
    await engine.look()
    assert engine.trust.level is Level.EXACT


@pytest.mark.parametrize("is_seen_away", [True, False])
async def test_what_an_engine_showed_of_its_options_ends_with_its_life(
    engine: Engine, *, is_seen_away: bool
) -> None:
    engine.rank.live("", 0, batch())
    size = b'process_start_time_seconds %d\nvllm:cache_config_info{num_gpu_blocks="%d"} 1.0\n'
    engine.metrics = size % (100, 11) + SPECULATES
    await engine.look()
    assert "lookahead" in engine.trust.reason
    if is_seen_away:
        engine.health = 503
        await engine.look()
    engine.health, engine.metrics = 200, size % (200, 21)
    await engine.look()
    assert not engine.status.drafts
    assert "lookahead" not in engine.trust.reason
    assert engine.rank.capacity == 20
    await engine.look()
    assert engine.status.models


@pytest.mark.parametrize("size", [b"9" * 5000, b"0", b"1", b"-1"])
async def test_a_cache_of_a_size_that_no_cache_has_is_not_learnt(
    engine: Engine, size: bytes
) -> None:
    engine.metrics = b'vllm:cache_config_info{num_gpu_blocks="%s"} 1.0\n' % size
    await engine.look()
    assert engine.pod.ready
    assert engine.rank.capacity == 0
