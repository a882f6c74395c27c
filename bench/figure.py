"""One measured figure, and what it is compared with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in `unit`, and its ratio to `baseline` on the same work in the same run."""

    name: str
    value: float
    unit: str
    baseline: str
    ratio: float
