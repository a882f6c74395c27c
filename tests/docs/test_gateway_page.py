"""docs/start/gateway.md describes what `make gateway` does, and its commands work as they are written there."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.page_code import blocks
from tests.docs.test_pages import ROOT
from warmpath.lab.local.gateway import main

PAGE = ROOT / "docs" / "start" / "gateway.md"
NEEDS_CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="the page needs curl")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def told(headers: str) -> list[str]:
    """Return the figures of the picker in a response's headers; which pod is taken is chance."""
    found = re.findall(r"^x-warmpath-[\w-]+: \S+", headers, re.MULTILINE)
    assert found[0].startswith("x-warmpath-pod: pod-")
    return found[1:]


@pytest.fixture(scope="module")
def curl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run what `make gateway` runs, and return the command that it prints to paste."""
    [recipe] = re.findall(r"^gateway: (?:.*\n\t)+@\$\(BIN\)/(warmpath .*)$", MAKEFILE, re.MULTILINE)
    folder = tmp_path_factory.mktemp("gateway")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    process = subprocess.Popen(
        ["bash", "-euc", f"exec .venv/bin/{recipe}"],
        cwd=folder, env=os.environ, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        command = ""
        for line in process.stdout:
            command = line if line.startswith("  curl ") else command
            if line.startswith("Ctrl-C"):
                break
        yield command
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def run(command: str) -> str:
    done = subprocess.run(
        ["bash", "-euc", command], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.deep
@NEEDS_CURL
def test_make_gateway_says_what_the_page_shows(curl: str) -> None:
    assert blocks(PAGE, "sh")[0] == "make gateway\n"
    for shown in blocks(PAGE, "text"):
        answer = run(curl)
        assert answer.startswith("HTTP/1.1 200 OK")
        assert told(answer) == told(shown)


@NEEDS_CURL
def test_every_api_is_served_as_the_page_of_apis_says(curl: str) -> None:
    page = (ROOT / "docs" / "reference" / "inference-apis.md").read_text(encoding="utf-8")
    [commands] = re.findall(r"```sh\n(GATEWAY=.*?)```", page, re.DOTALL)
    [address] = re.findall(r"http://[\d.:]+", curl)
    answers = run(re.sub(r"http://[\d.:]+", address, commands)).split("HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == ["200", "200", "200", "404"]
    first, second = re.findall(r"`x-warmpath-cached-tokens` is (\d+) .* and (\d+) in", page)[0]
    cached = [[int(one.split()[1]) for one in told(answer)[:1]] for answer in answers]
    assert cached == [[int(first)], [int(second)], [0], []], "an error says nothing of the cache"


def test_the_printed_configuration_is_valid(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "out").mkdir()
    [block] = [one for one in blocks(PAGE, "sh") if "--print-config" in one]
    done = subprocess.run(
        ["bash", "-euc", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert " OK" in done.stdout


def test_the_page_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert options - set(re.findall(r"--[\w-]+", PAGE.read_text("utf-8"))) == {
        "--simulate",
        "--out",
        "--token-file",
    }
