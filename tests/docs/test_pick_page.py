"""`docs/reference/picks.md` names every policy, with the defaults of its options."""

from dataclasses import fields
from pathlib import Path

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


def numbers(line: str) -> list[float]:
    found = []
    for word in line.replace(",", " ").replace(";", " ").split():
        try:
            found.append(float(word))
        except ValueError:
            continue
    return found
