"""Examples on pages: settings and logs are read as they are printed, the library's work, commands have their options.

Pages whose commands run from end to end have a test of their own beside this one.
"""

import asyncio
import contextlib
import doctest
import io
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import commands
from tests.docs.test_pages import PAGES, ROOT, text_of
from tests.indexer.consistent import check
from tests.lab.simworker.local_worker import LocalWorker
from tests.router.running_router import running_router
from warmpath import Index
from warmpath.cli.main import GROUPS
from warmpath.lab.simulate.traffic.access_log import read_traffic
from warmpath.router.config.form import usable
from warmpath.router.shadow.gateway_line import Sent, read_sent

FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LANGUAGES = {"sh", "toml", "json", "yaml", "python", "text", "console", "nginx", "log"}
COMMANDS = {one.name: one for one in commands()}


def examples(*languages: str) -> Iterator[object]:
    """Yield the examples, except for those that `test_extending_pages.py` runs."""
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


def test_help_and_the_page_on_commands_have_each_of_them_in_its_group() -> None:
    page = text_of(ROOT / "docs" / "reference" / "commands.md").partition("## Exit")[0]
    cells = re.findall(r"^\|[^|]*\| (`[^|]+) \|", page, re.MULTILINE)
    grouped = [name for names in GROUPS.values() for name in names]
    assert [name for cell in cells for name in re.findall(r"`([a-z-]+)`", cell)] == grouped
    assert sorted(grouped) == sorted(COMMANDS)


def test_the_calls_of_the_configuration_page_find_no_mistake() -> None:
    page = text_of(Path(ROOT / "docs" / "reference" / "config.md"))
    scripts = [text for language, text in FENCED.findall(page) if language == "sh"]
    assert len(scripts) == 1
    for script in scripts:
        done = subprocess.run(
            ["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


LIBRARY = (ROOT / "docs" / "start" / "library.md").read_text(encoding="utf-8")
PICK = (ROOT / "docs" / "explain" / "picking.md").read_text(encoding="utf-8")
ROUTER = "127.0.0.1:7400"


def tables(worker: LocalWorker) -> str:
    return f"""
        [[models]]
        name = "demo"
        [[pods]]
        id = "pod-1"
        model = "demo"
        address = "{worker.address}"
        events = "{worker.events}"
        replay = "{worker.replay}"
        topic = "kv"
        """


def run(examples: str) -> dict[str, Any]:
    """Run a page's examples and return their names. Raises at the first that shows something else."""
    parsed = doctest.DocTestParser().get_doctest(examples, {}, "page", None, 0)
    assert len(parsed.examples) > 25
    runner = doctest.DebugRunner(verbose=False)
    runner.run(parsed, clear_globs=False)
    return parsed.globs


async def test_every_example_of_the_page_shows_what_the_page_says(tmp_path: Path) -> None:
    async with LocalWorker() as worker, running_router(tmp_path, tables(worker)) as (router, _):
        page = LIBRARY.replace(ROUTER, router.address)
        names = await asyncio.to_thread(run, page)
        # The function of the page follows the worker.
        index, fed = Index("demo", max_bytes=1 << 24), asyncio.Event()
        following = asyncio.create_task(
            asyncio.to_thread(names["follow"], index, "pod-1", worker.events, fed.is_set)
        )
        number = 0
        while not (index.pods and index.blocks("pod-1")):
            number += 1
            await worker.generate(prompt=list(range(number, number + 20)))
        fed.set()
        await following
        check(index.ingest)


async def test_the_client_of_the_page_on_picks_does_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", PICK, re.DOTALL)[0]
    async with LocalWorker() as worker, running_router(tmp_path, tables(worker)) as (router, _):
        await asyncio.to_thread(exec, code.replace(ROUTER, router.address), {})
        assert capsys.readouterr().out == f"send the request to pod-1 {worker.address}\n"


PAGE = (ROOT / "docs" / "guides" / "simulate-and-verify.md").read_text(encoding="utf-8")
LOGS = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BODY = (
    '{"model": "m", "stream": true, "messages": [{"role": "user", "content": "one\\n\\"two\\""}]}'
)
SENT = ("10.0.0.2:80", "/v1/completions", BODY.encode(), None)
"""What shadow mode reads of a line, beside its time."""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "access.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("log", LOGS, ids=["hashes", "texts", "sessions"])
def test_a_printed_log_has_requests_at_different_times(tmp_path: Path, log: str) -> None:
    requests = read_traffic(write(tmp_path, log)).requests
    assert len({one.at for one in requests}) == len(requests) >= 2
    assert all(one.keys for one in requests)


def test_a_line_of_the_printed_nginx_format_is_read(tmp_path: Path) -> None:
    [line] = re.findall(r"^log_format warmpath escape=json '(.*)';$", PAGE, re.MULTILINE)
    values = {
        "msec": "1772366400.250",
        # escape=json writes a value as the inside of a JSON string.
        "request_body": json.dumps(BODY)[1:-1],
        "body_bytes_sent": "2200",
        "http_x_session_id": "",
        "request_time": "0.250",
        "upstream_addr": "10.0.0.1:80, 10.0.0.2:80",
        "uri": "/v1/completions",
        "status": "200",
    }
    logged = re.sub(r"\$(\w+)", lambda found: values[found[1]], line)
    [one] = read_traffic(write(tmp_path, logged)).requests
    assert (one.at, one.took, one.output_tokens, one.session) == (1772366400.0, 0.25, 10, "")
    assert read_sent(logged.encode()) == Sent(1772366400.0, *SENT)


def test_a_line_of_the_printed_envoy_format_is_read(tmp_path: Path) -> None:
    [printed] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    [log] = yaml.safe_load(printed)["access_log"]
    values = {
        "%START_TIME%": "2026-03-01T12:00:00.250Z",
        "%DYNAMIC_METADATA(warmpath:request_body)%": BODY,
        "%BYTES_SENT%": 2200,
        "%REQ(X-SESSION-ID)%": None,
        "%UPSTREAM_HOST%": "10.0.0.2:80",
        "%REQ(:PATH)%": "/v1/completions",
        "%RESPONSE_CODE%": 200,
    }
    fields = log["typed_config"]["log_format"]["json_format"]
    line = {name: values[operator] for name, operator in fields.items()}
    [one] = read_traffic(write(tmp_path, json.dumps(line))).requests
    assert (one.at, one.output_tokens) == (1772366400.25, 10)
    assert read_sent(json.dumps(line).encode()) == Sent(1772366400.25, *SENT)
