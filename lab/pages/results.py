"""Prints lab/bench/RESULTS.md, made of the figures kept in lab/bench/results.jsonl (`make results`).

With the name of a file that `python -m warmpath.lab.bench --json` wrote, its figures are kept first.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[1] / "bench" / "results.jsonl"

BESIDE = "Gateways side by side"
"""The part whose figures are named `FRONT: FIGURE`, and have a column for each front."""
BEGINNING = """# Results

The last figure of each benchmark, and [how each is made](../../docs/reference/benchmarks.md).
Times move by a third from hour to hour on this virtual machine with 2 noisy cores: compare ratios.
`make results RUN=FILE` puts a run's `--json` figures in the place of those with the same names.
The last column has the commit that was measured, or the day if nobody noted the commit.
"""


def kept() -> list[dict[str, Any]]:
    """Return the kept figures, in the order of the page."""
    return [json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines()]


def updated(
    figures: list[dict[str, Any]], run: list[dict[str, Any]], commit: str
) -> list[dict[str, Any]]:
    """Return the figures with those of a run in their places.

    Figures that are not kept are left out, unless they name their part: these come last.
    """
    new = {(one["name"], one["baseline"]): one for one in run}
    found = []
    for figure in figures:
        one = new.pop((figure["name"], figure["baseline"]), None)
        found.append(figure if one is None else {**one, "part": figure["part"], "commit": commit})
    return [*found, *({**one, "commit": commit} for one in new.values() if "part" in one)]


def page(figures: list[dict[str, Any]]) -> str:
    """Return the page."""
    text, part = BEGINNING, ""
    beside = [one for one in figures if one["part"] == BESIDE and one["peer"] is None]
    for one in figures:
        if beside and one["part"] == BESIDE:
            text += f"\n## {BESIDE}\n\n{_side_by_side(beside)}"
            beside = []
        if one["part"] == BESIDE and one["peer"] is None:
            continue
        if one["part"] != part:
            part = one["part"]
            title = f"{part}: the goals" if part == BESIDE else part
            text += f"\n## {title}\n\n| figure | here | peer | ratio | goal | commit |\n"
            text += "| --- | ---: | --- | ---: | --- | --- |\n"
        text += f"| {one['name']} | {_number(one['value'])} {one['unit']} | {_peer(one)} | "
        ratio = one["ratio"]
        text += f"{'' if ratio is None else f'{ratio:.2f}'} | {_goal(one)} | {one['commit']} |\n"
    return text


def _side_by_side(figures: list[dict[str, Any]]) -> str:
    """Return one table of figures that are named `FRONT: FIGURE`, with a column for each front."""
    rows: dict[str, dict[str, str]] = {}
    for one in figures:
        front, _, name = one["name"].partition(": ")
        row = rows.setdefault(f"{name}, {one['unit']}" if one["unit"] else name, {})
        row[front] = _number(one["value"])
    fronts = list(dict.fromkeys(front for row in rows.values() for front in row))
    text = f"| | {' | '.join(fronts)} |\n| --- |{' ---: |' * len(fronts)}\n"
    for name, row in rows.items():
        text += f"| {name} | {' | '.join(row.get(front, '') for front in fronts)} |\n"
    return f"{text}\nMeasured at {', '.join(sorted({one['commit'] for one in figures}))}.\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _peer(one: dict[str, Any]) -> str:
    value = "" if one["peer"] is None else _number(one["peer"])
    return ", ".join(filter(None, (value, one["baseline"])))


def _goal(one: dict[str, Any]) -> str:
    if one["goal"] is None:
        return ""
    bound = f"{'≥' if one['least'] else '≤'} {one['goal']:.3g}"
    return bound if one["met"] is not False else f"{bound}, **missed**"


def main(argv: Sequence[str]) -> None:
    """Keep the figures of a run, if one is named, and print the page."""
    figures = kept()
    if argv:
        git = ["git", "rev-parse", "--short=8", "HEAD"]
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
        run = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
        figures = updated(figures, run, commit)
        KEPT.write_text("".join(f"{json.dumps(one)}\n" for one in figures), encoding="utf-8")
    sys.stdout.write(page(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
