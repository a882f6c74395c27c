"""Actions: the stream returns them, and its caller carries them out."""

from dataclasses import dataclass

MOST_SEQUENCE = (1 << 63) - 1
"""The highest sequence of a batch. Engines count from 0; -1, as a signed number, ends a replay."""


@dataclass(frozen=True, slots=True)
class Apply:
    """The caller must apply this batch: it is the next one in order."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Reset:
    """A new life began: drop everything that was known of the rank."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask the engine, `delay` seconds from now, for every batch from `start` on.

    Answers carry `ticket`. A later replay takes the place of this one.
    """

    ticket: int
    start: int
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something was missed: every block known until now may be gone."""


Action = Apply | Reset | AskReplay | Doubt
