"""Examples on pages: settings are read as they are printed, and commands have the options that they are given.

Pages whose examples run from end to end have a test of their own beside this one.
"""

import contextlib
import io
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.cli.installed import commands
from tests.docs.test_pages import PAGES, ROOT, text_of
from warmpath.router.config.form import usable

FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LANGUAGES = {"sh", "toml", "json", "yaml", "python", "text", "console", "nginx", "log"}
COMMANDS = {one.name: one for one in commands()}


def examples(*languages: str) -> Iterator[object]:
    """Yield the examples, except for those that `test_first_change.py` runs."""
    for page in PAGES:
        if page.name == "CONTRIBUTING.md":
            continue
        found = [one for one in FENCED.findall(text_of(page)) if one[0] in languages]
        for number, (_, text) in enumerate(found, 1):
            yield pytest.param(text, id=f"{page.name}-{number}")


def test_every_example_is_of_a_language_that_is_tested() -> None:
    assert {one[0] for page in PAGES for one in FENCED.findall(text_of(page))} <= LANGUAGES


@pytest.mark.parametrize("text", list(examples("toml")))
def test_settings_have_keys_and_values_that_the_router_reads(text: str) -> None:
    content = tomllib.loads(text)
    if "project" not in content:  # a part of another package's pyproject.toml
        _, form = usable({"models": [{"name": "demo"}], **content})
        assert form.problems == []


@pytest.mark.parametrize("text", list(examples("json")))
def test_json_has_an_object_a_line_or_is_one(text: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        for line in text.splitlines():
            assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("text", list(examples("yaml")))
def test_yaml_can_be_read(text: str) -> None:
    assert list(yaml.safe_load_all(text))


@cache
def help_of(*words: str) -> str:
    """Return the help of a command, or of one of its own commands; empty if there is none."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(io.StringIO()):
        try:
            COMMANDS[words[0]].load()([*words[1:], "--help"])
        except SystemExit as ended:
            if ended.code:
                return ""
    return told.getvalue()


def calls(text: str) -> Iterator[list[str]]:
    """Yield the words of each call of warmpath, up to a pipe or the end of the command."""
    for line in text.replace("\\\n", " ").splitlines():
        for call in re.findall(r"(?:^|[\s(])(?:\.venv/bin/)?warmpath ([a-z][^|;&>)]*)", line):
            words = shlex.split(call, comments=True)
            if words and words[0] in COMMANDS:
                yield words


@pytest.mark.parametrize("text", list(examples("sh")))
def test_commands_have_the_options_that_they_are_given(text: str) -> None:
    for words in calls(text):
        told = help_of(words[0])
        if len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]) and words[1] in told:
            told += help_of(*words[:2])
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        known = set(re.findall(r"--[a-z0-9][a-z0-9-]*", told))
        assert given <= known, words


def test_the_page_on_commands_has_each_of_them() -> None:
    page = text_of(ROOT / "docs" / "reference" / "commands.md").partition("## Exit")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`([a-z-]+)`", cell)} == set(COMMANDS)


def test_the_calls_of_the_configuration_page_find_no_mistake() -> None:
    page = text_of(Path(ROOT / "docs" / "reference" / "config.md"))
    scripts = [text for language, text in FENCED.findall(page) if language == "sh"]
    assert len(scripts) == 1
    for script in scripts:
        done = subprocess.run(
            ["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
