"""docs/gateway.md describes what `make gateway` does, and its commands work as they are written there."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from router.commands.gateway.command import main
from tests.docs.test_pages import ROOT

PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def told(headers: str) -> list[str]:
    """Return the figures of the picker in a response's headers; which pod is taken is chance."""
    found = re.findall(r"^x-warmpath-[\w-]+: \S+", headers, re.MULTILINE)
    assert found[0].startswith("x-warmpath-pod: pod-")
    return found[1:]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page needs curl")
def test_make_gateway_says_what_the_page_shows(tmp_path: Path) -> None:
    [recipe] = re.findall(r"^gateway: (?:.*\n\t)+@\$\(BIN\)/(warmpath .*)$", MAKEFILE, re.MULTILINE)
    assert blocks("sh")[0] == "make gateway\n"
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    process = subprocess.Popen(
        ["bash", "-euc", f"exec .venv/bin/{recipe}"],
        cwd=tmp_path, env=os.environ, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        curl = ""
        for line in process.stdout:
            curl = line if line.startswith("  curl ") else curl
            if line.startswith("Ctrl-C"):
                break
        for shown in blocks("text"):
            done = subprocess.run(
                ["bash", "-euc", curl], capture_output=True, text=True, timeout=60, check=True
            )
            assert done.stdout.startswith("HTTP/1.1 200 OK")
            assert told(done.stdout) == told(shown)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_printed_configuration_is_valid(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "out").mkdir()
    [block] = [one for one in blocks("sh") if "--print-config" in one]
    done = subprocess.run(
        ["bash", "-euc", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert " OK" in done.stdout


def test_the_page_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    assert options - set(re.findall(r"--[\w-]+", PAGE)) == {"--simulate", "--out", "--token-file"}
