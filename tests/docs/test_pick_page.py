"""`docs/reference/picks.md` names every policy, with the defaults of its options."""

import re
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

from tests.scorer.ranked import rank
from warmpath.scorer.candidate import Candidate, Load, Request
from warmpath.scorer.policy import make_policy, policy_names

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "picks.md").read_text(encoding="utf-8")


def row(key: str, table: str) -> str:
    rows = [line for line in table.splitlines() if line.startswith("|") and f"`{key}`" in line]
    assert rows, f"docs/reference/picks.md has no row for `{key}`"
    return rows[0]


def test_every_policy_has_a_row_with_its_options() -> None:
    for name in policy_names():
        line = row(name, PAGE)
        if name != "warmpath":
            for option in fields(make_policy(name)):  # type: ignore[arg-type]
                assert f"`{option.name.replace('_', '-')}`" in line
                assert option.default in numbers(line), f"{name}: {option.name}"
    for option in fields(make_policy("warmpath")):  # type: ignore[arg-type]
        line = row(option.name.replace("_", "-"), PAGE)
        assert option.default in numbers(line), option.name


def test_the_policy_on_the_page_chooses_by_the_costs_that_it_names() -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "shortest"}
    exec(code, names)
    candidates = [
        Candidate("idle", rank=0, cached=0, prefill=1.0, load=Load(wait=0.5)),
        Candidate("busy", rank=0, cached=0, prefill=1.0, load=Load(wait=0.1, in_flight=50)),
    ]
    for per_request, first in ((0.0, "busy"), (0.01, "idle")):
        ranked = rank(names["Shortest"](per_request), Request(1000), candidates, Random(0))
        assert ranked[0].candidate.pod == first


def numbers(line: str) -> list[float]:
    found = []
    for word in line.replace(",", " ").replace(";", " ").split():
        try:
            found.append(float(word))
        except ValueError:
            continue
    return found
