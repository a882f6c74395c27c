"""Pages name metrics, keys, policies and defaults that exist, and figures that stand where they say."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT
from tests.router.config.test_environment import reloadable_keys
from warmpath.lab.bench.__main__ import BENCHMARKS, WITH_OPTIONS
from warmpath.lab.pages.config import Section, docstrings, page, sections
from warmpath.router.config import schema
from warmpath.router.config.form import usable
from warmpath.scorer.policy import make_policy, policy_names

DOCS = ROOT / "docs"
NAMED = ("guides/size-and-tune.md", "guides/operate.md")


@pytest.mark.parametrize("name", NAMED)
def test_every_metric_exists(name: str) -> None:
    metrics = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    for metric in re.findall(r"`(warmpath_\w+)`", (DOCS / name).read_text(encoding="utf-8")):
        assert f"`{metric}`" in metrics, metric


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
    assert len(rows) > 5
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
    assert named == {*BENCHMARKS, *WITH_OPTIONS}


PAGE = page()
TOP = Section((), schema.Config, is_array=False)


def cells(section: Section, key: str) -> list[str]:
    """Return the cells of a key's row: key, value, default and meaning."""
    part = re.split(r"\n## ", PAGE.partition(f"\n## {section.heading}\n")[2])[0]
    [row] = [line for line in part.splitlines() if line.startswith(f"| `{key}` |")]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def server(key: str) -> list[str]:
    return cells(Section(("server",), schema.ServerTable, is_array=False), key)


def test_the_committed_page_is_current() -> None:
    committed = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    assert committed == PAGE, "`make docs` writes it anew"


def test_every_table_of_the_schema_has_a_section() -> None:
    tables = {
        one
        for one in vars(schema).values()
        if isinstance(one, type) and issubclass(one, schema.Table)
    }
    assert {one.table for one in sections()} == tables - {schema.Table, schema.Config}


@pytest.mark.parametrize("section", list(sections()), ids=lambda one: ".".join(one.path))
def test_every_key_has_a_reason(section: Section) -> None:
    table = section.table
    for field, key in zip(table.__struct_fields__, table.__struct_encode_fields__, strict=True):
        if (*section.path, key) not in {one.path for one in sections()}:
            assert docstrings(table).get(field), (
                f"{key} has no docstring in router/config/schema.py"
            )
            assert cells(section, key)[-1]


def test_a_row_has_the_type_unit_default_and_range_that_the_schema_has() -> None:
    assert server("processes")[1:3] == ["integer, 1 to 64", "`1`"]
    conditions = "list: `pods`, `index`, `coverage`, `tokenizers`"
    assert server("ready")[1:3] == [conditions, '`["pods", "index"]`']
    assert server("ready-coverage")[1:3] == ["number, above 0, to 1", "`0.5`"]
    assert server("drain-seconds")[1:3] == ["seconds, above 0, to 86400", "`3`"]
    assert server("transport")[1] == "`auto`, `nghttp2`, `grpcio`"
    limits = Section(("limits",), schema.LimitsTable, is_array=False)
    assert cells(limits, "max-prompt-bytes")[1:3] == ["bytes, 1 to 1 GiB", "8 MiB"]


def test_required_keys_are_marked() -> None:
    required = re.findall(r"^\| `([a-z-]+)` \|[^|]*\| \*required\* \|", PAGE, re.MULTILINE)
    assert sorted(required) == sorted(
        ["name", "name", "roles", "id", "model", "address", "name", "model"]
    )


def test_the_page_marks_every_key_that_a_running_router_takes_over() -> None:
    told = set()
    for section in sections():
        part = re.split(r"\n## ", PAGE.partition(f"\n## {section.heading}\n")[2])[0]
        introduction, _, rows = part.partition("\n| key |")
        suffix = "" if introduction.rstrip().endswith("*Reloads.*") else r".*\*Reloads\.\* \|"
        marked = re.findall(rf"^\| `([a-z-]+)` \|{suffix}", rows, re.MULTILINE)
        told |= {".".join((*section.path, key)) for key in marked}
    pods = {f"pods.{key}" for key in schema.PodSpec.__struct_encode_fields__}
    assert "pods" in reloadable_keys()
    assert told == (set(reloadable_keys()) - {"pods"}) | pods


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_every_key_that_a_page_names_with_its_table_exists(page: Path) -> None:
    keys = {
        (".".join(one.path), key)
        for one in sections()
        for key in one.table.__struct_encode_fields__
    }
    tables = {table for table, _ in keys}
    named = re.findall(
        r"`([a-z-]+)\.([a-z][a-z-]+)(?: = [^`]*)?`", page.read_text(encoding="utf-8")
    )
    assert {one for one in named if one[0] in tables and one[1] != "md"} <= keys


PICKS = (DOCS / "reference" / "picks.md").read_text(encoding="utf-8")


def row(key: str, table: str) -> str:
    rows = [line for line in table.splitlines() if line.startswith("|") and f"`{key}`" in line]
    assert rows, f"docs/reference/picks.md has no row for `{key}`"
    return rows[0]


def test_every_policy_has_a_row_with_its_options() -> None:
    for name in policy_names():
        line = row(name, PICKS)
        if name != "warmpath":
            for option in fields(make_policy(name)):  # type: ignore[arg-type]
                assert f"`{option.name.replace('_', '-')}`" in line
                assert option.default in numbers(line), f"{name}: {option.name}"
    for option in fields(make_policy("warmpath")):  # type: ignore[arg-type]
        line = row(option.name.replace("_", "-"), PICKS)
        assert option.default in numbers(line), option.name


def numbers(line: str) -> list[float]:
    found = []
    for word in line.replace(",", " ").replace(";", " ").split():
        try:
            found.append(float(word))
        except ValueError:
            continue
    return found
