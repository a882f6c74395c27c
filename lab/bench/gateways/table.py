"""The figures of all fronts: medians of rounds, as one table and as figures with ratios and goals."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from warmpath.lab.bench.figure import Figure

NOBODY, ALONE, OURS, BASE, SMG, VLLM_ROUTER = FRONTS = (
    "no front", "Envoy alone", "Envoy + warmpath", "Envoy + warmpath, other checkout", "smg",
    "vllm-router",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one front in one round, or the medians of several."""

    front: str
    values: Mapping[str, float]
    """Row -> figure, in the row's unit."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of figure, which every front has."""

    name: str
    unit: str
    goals: Sequence[tuple[str, float]] = ()
    """Pairs of another front and the goal of the ratio of warmpath's figure to that front's."""
    least: bool = False
    """Whether more is better, and the goals bound the ratio from below."""


def medians(measured: Iterable[Measured]) -> list[Measured]:
    """Return one for each front, in the order of the first round."""
    rounds: dict[str, list[Mapping[str, float]]] = {}
    for one in measured:
        rounds.setdefault(one.front, []).append(one.values)
    return [
        Measured(
            front,
            {
                row: statistics.median(one[row] for one in values if row in one)
                for row in dict.fromkeys(name for one in values for name in one)
            },
        )
        for front, values in rounds.items()
    ]


def table(measured: Sequence[Measured], rows: Sequence[Row]) -> Table:
    """Return a table with a column for each front."""
    found = Table("", box=None)
    for of in measured:
        found.add_column(of.front, justify="right")
    for row in rows:
        if any(row.name in of.values for of in measured):
            cells = (number(of.values.get(row.name)) for of in measured)
            found.add_row(f"{row.name}, {row.unit}" if row.unit else row.name, *cells)
    return found


def number(value: float | None) -> str:
    """Return a figure in as many digits as mean something; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"


def figures(measured: Sequence[Measured], rows: Sequence[Row]) -> list[Figure]:
    """Return a figure for each cell, and after them one for each goal whose front was measured."""
    by_front = {of.front: of.values for of in measured}
    cells = [
        Figure(f"{of.front}: {row.name}", of.values[row.name], row.unit)
        for row in rows
        for of in measured
        if row.name in of.values
    ]
    ours = by_front.get(OURS, {})
    goals = [
        Figure(
            f"{OURS}: {row.name}", ours[row.name], row.unit, by_front[to][row.name], to,
            goal=goal, least=row.least,
        )
        for row in rows
        for to, goal in row.goals
        if row.name in ours and row.name in by_front.get(to, {})
    ]  # fmt: skip
    return cells + goals
