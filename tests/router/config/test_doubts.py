"""Settings that are allowed and hardly meant are warned of, with their key and the limit."""

from pathlib import Path

import pytest

from warmpath.router import serve
from warmpath.router.config.doubts import warnings
from warmpath.router.config.read import parse

MODEL = '[[models]]\nname = "m"\n'
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
    [told] = warnings(parse(text, "text"))
    assert told.startswith(warning)


@pytest.mark.parametrize(
    "text",
    [
        MODEL,
        MODEL + "[limits]\nmax-in-flight-bytes = 17825792\n",
        # In shared mode nothing is read every poll-seconds.
        SHARED + 'mode = "shared"\nstale-seconds = 0.01\n',
    ],
)  # fmt: skip
def test_what_may_well_be_meant_is_not(text: str) -> None:
    assert not warnings(parse(text, "text"))


def test_the_routers_log_warns_at_the_start_with_the_file_and_the_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def supervised(*_: object) -> int:
        return 0

    monkeypatch.setattr(serve, "_supervise", supervised)
    file = tmp_path / "warmpath.toml"
    file.write_text(
        '[server]\nlisten = "127.0.0.1:1"\nprocesses = 2\n' + MODEL + "[queue]\nmax-looks = 8\n"
    )
    assert serve.main(["--config", str(file)]) == 0
    line = file.read_text().splitlines().index("max-looks = 8") + 1
    assert f"{file}:{line}: queue.max-looks: has no effect" in caplog.text
