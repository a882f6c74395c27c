"""A shell completes commands, options and their values as the parsers have them."""

import shutil
import subprocess

import pytest

from tests.cli.conftest import Output
from tests.cli.installed import commands
from warmpath.cli.completion import main, parsers

FOUND = dict(parsers(commands()))


@pytest.fixture
def script(output: Output, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: commands())
    assert main(["bash"]) == 0
    return output.out()


def completed(script: str, *words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    ask = 'COMP_WORDS=(warmpath "$@"); COMP_CWORD=$#; _warmpath; printf "%s\\n" "${COMPREPLY[@]}"'
    line = ["bash", "--norc", "-c", f"{script}\n{ask}", "-", *words]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["sco"], ["score"]),
        (["index", ""], ["stats", "sweep", "dump", "--help"]),
        (["index", "stats", "--js"], ["--json"]),
        (["publish", "--engine", "s"], ["sglang"]),
        (["serve", "--log-level", ""], ["debug", "info", "warning", "error"]),
        (["completion", "z"], ["zsh"]),
        (["pods", "--timeout", ""], []),
    ],
)
def test_bash_offers_what_fits(script: str, words: list[str], offers: list[str]) -> None:
    assert completed(script, *words) == offers


def test_bash_offers_every_command_and_all_its_options(script: str) -> None:
    assert {name for name in FOUND if " " not in name} <= {*completed(script, "")}
    for name, parser in FOUND.items():
        shown = parser.format_help()
        offered = completed(script, *name.split(), "--")
        assert all(option in shown for option in offered), name
        assert {"--help"} <= {*offered}, name


def test_bash_offers_files_where_an_option_takes_one(script: str) -> None:
    assert "README.md" in completed(script, "score", "--file", "READ")


def test_zsh_reads_its_script(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: commands())
    assert main(["zsh"]) == 0
    script = output.out()
    assert "'--engine[its kind]:engine:(vllm sglang trtllm)'" in script
    if (zsh := shutil.which("zsh")) is not None:
        subprocess.run([zsh, "--no-rcs", "-n"], input=script, text=True, check=True)
