"""Settings that are hardly meant, or change nothing because of others, are warned of with their key."""

from pathlib import Path

import pytest

from warmpath.router import serve
from warmpath.router.config.mistakes import dotted, doubts
from warmpath.router.config.read import parse

MODEL = '[[models]]\nname = "m"\n'
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
