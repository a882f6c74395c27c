"""The figures of all fronts: medians of rounds, as one table and as figures with ratios."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from warmpath.lab.bench.figure import Figure

NOBODY, ALONE, OURS, BASE = (
    "no front", "Envoy alone", "Envoy + warmpath", "Envoy + warmpath, other checkout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one front in one round, or the medians of several."""

    front: str
    values: Mapping[str, float]
    """Column -> figure, in the column's unit."""


@dataclass(frozen=True, slots=True)
class Column:
    """One kind of figure."""

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
                column: statistics.median(one[column] for one in values if column in one)
                for column in dict.fromkeys(name for one in values for name in one)
            },
        )
        for front, values in rounds.items()
    ]


def table(measured: Sequence[Measured], columns: Sequence[Column]) -> Table:
    """Return a table with a row for each front."""
    shown = [one for one in columns if any(one.name in of.values for of in measured)]
    found = Table("", box=None)
    for one in shown:
        found.add_column(f"{one.name}, {one.unit}" if one.unit else one.name, justify="right")
    for of in measured:
        found.add_row(of.front, *(number(of.values.get(one.name)) for one in shown))
    return found


def number(value: float | None) -> str:
    """Return a figure in as many digits as mean something; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def figures(measured: Sequence[Measured], columns: Sequence[Column]) -> list[Figure]:
    """Return a figure for each cell; those of warmpath with the ratio to Envoy alone, and to goals."""
    by_front = {of.front: of.values for of in measured}
    found = []
    for of in measured:
        for one in columns:
            if one.name not in of.values:
                continue
            goals: dict[str, float | None] = {ALONE: None, **dict(one.goals)}
            beside = [(to, goal) for to, goal in goals.items() if one.name in by_front.get(to, {})]
            for to, goal in beside if of.front == OURS else [("", None)]:
                found.append(
                    Figure(
                        f"{of.front}: {one.name}",
                        of.values[one.name],
                        one.unit,
                        by_front[to][one.name] if to else None,
                        to,
                        goal=goal,
                        least=one.least,
                    )
                )
    return found
