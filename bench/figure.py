"""One measured figure, and what it is compared with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in `unit`; `ratio` is the time it takes over `baseline`'s, same work and run."""

    name: str
    value: float
    unit: str
    baseline: str
    ratio: float
