"""One measured figure, beside the peer's."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in `unit` is ours; `peer` is the value of the peer or baseline for the same work.

    `goal` bounds the ratio from above, or from below if more is better (`least`). `peer` and `ratio` are
    None if the peer is not installed, or if there is none.
    """

    name: str
    value: float
    unit: str
    peer: float | None = None
    baseline: str = ""
    goal: float | None = None
    least: bool = False
    ratio: float | None = field(init=False)
    met: bool | None = field(init=False)

    def __post_init__(self) -> None:
        ratio = self.value / self.peer if self.peer else None
        met = None
        if ratio is not None and self.goal is not None:
            met = ratio >= self.goal if self.least else ratio <= self.goal
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "met", met)
