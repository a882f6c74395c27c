"""Pages for operators name metrics and keys that exist, and figures that stand where they say."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT
from warmpath.lab.bench.__main__ import BENCHMARKS, POLICY
from warmpath.router.config.form import usable

DOCS = ROOT / "docs"
NAMED = ("guides/size-and-tune.md", "guides/operate.md")


def keys() -> set[str]:
    """Return all tables and keys of the page of keys, as table.key."""
    found, table = set(), ""
    for line in (DOCS / "reference" / "config.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## `\[+(.*?)\]+`", line):
            table = heading[1]
            found.add(table)
        elif row := re.match(r"\| `([a-z-]+)` \|", line):
            found.add(f"{table}.{row[1]}")
    assert len(found) > 100
    return found


@pytest.mark.parametrize("name", NAMED)
def test_every_metric_and_every_key_exists(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    metrics = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    known = keys()
    tables = {one.partition(".")[0] for one in known} | {"server"}
    for metric in re.findall(r"`(warmpath_\w+)`", page):
        assert f"`{metric}`" in metrics, metric
    for table, key in re.findall(r"`([a-z-]+)\.([a-z-]+)(?: = [^`]*)?`", page):
        if table in tables:
            assert f"{table}.{key}" in known, f"{table}.{key}"


@pytest.mark.parametrize("name", NAMED)
def test_values_of_keys_are_ones_that_the_router_takes(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    for table, setting in re.findall(r"`([a-z-]+)\.([a-z-]+ = [^`]+)`", page):
        content = tomllib.loads(f"[{table}]\n{setting}")
        _, form = usable({"models": [{"name": "demo"}], **content})
        assert form.problems == []


def cited() -> Iterator[tuple[str, str, Path]]:
    """Yield the rows of the page on sizes that have a figure: row, figures and the page that has them."""
    source = None
    for line in (DOCS / "guides" / "size-and-tune.md").read_text(encoding="utf-8").splitlines():
        cells = [one.strip() for one in line.strip("|").split("|")]
        if match := re.search(r"\]\(([^)#]+\.md)[^)]*\)", cells[-1]):
            source = (DOCS / "guides" / match[1]).resolve()
        elif cells[-1] != "the same":
            continue
        if line.startswith("|") and source is not None:
            yield cells[0], " ".join(cells[1:-1]), source


DERIVED = {"1,000"}
"""A number of pods in words there."""


def test_each_figure_of_a_setting_stands_on_the_page_that_it_cites() -> None:
    rows = list(cited())
    assert len(rows) > 10
    for row, text, source in rows:
        there = source.read_text(encoding="utf-8")
        for figure in re.findall(r"(?<![\w`.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)", text):
            assert figure in DERIVED or figure in there, (row, figure, source.name)


def test_the_page_on_benchmarks_has_each_of_them() -> None:
    page = (DOCS / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    named = {
        one
        for words in re.findall(r"python -m warmpath.lab.bench ([a-z ]+)`", page)
        for one in words.split()
    }
    assert named == {*BENCHMARKS, POLICY}
