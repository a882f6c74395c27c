"""The replays that a stream asks for: which one runs, where it must begin, and how many failed.

`HeldBatches` are the live batches that wait while a replay runs, up to a bound.
"""

from collections import deque
from dataclasses import dataclass

MOST_SEQUENCE = (1 << 63) - 1
"""The highest sequence of a batch. Engines count from 0; -1, as a signed number, ends a replay."""

PATIENCE = 10
"""Failures in a row after which a replay's batches count as lost, if the endpoint has ever answered."""

FIRST_PATIENCE = 3
"""The same if the endpoint has never answered: perhaps there is none."""

BACK_OFF = 0.1
LONGEST_BACK_OFF = 5.0
"""Seconds before a replay that broke off is asked for again: after the first failure, and at most."""


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask the engine, `delay` seconds from now, for every batch from `start` on.

    Answers carry `ticket`. A later replay takes the place of this one.
    """

    ticket: int
    start: int
    delay: float = 0.0


class ReplayCall:
    """The last replay that was asked for, and how the earlier ones ended."""

    def __init__(self) -> None:
        self.ticket = 0
        """The ticket of the last replay; that of no replay where its answer is not wanted any more."""
        self.fence: int | None = None
        """The sequence with which the replay must begin; None where there is no fence."""
        self.begun = False
        """Whether the replay's first batch has arrived; with a fence, that batch or a later one."""
        self.unfillable = -1
        """The missing sequence for which a replay was asked; a second one would not bring it either."""
        self.failures = 0
        """How many replays failed in a row without bringing a batch or ending properly."""
        self.is_answered = False
        """Whether any replay was ever answered."""

    def ask(self, sequence: int, *, has_fence: bool, delay: float) -> AskReplay:
        """Ask for the batches from `sequence` on, and with `has_fence` the one before them too."""
        self.ticket += 1
        self.begun = False
        self.fence = sequence - 1 if has_fence else None
        return AskReplay(self.ticket, sequence if self.fence is None else self.fence, delay)

    @property
    def is_hopeless(self) -> bool:
        """Whether the most replays in a row have failed, so that their batches count as lost."""
        return self.failures >= (PATIENCE if self.is_answered else FIRST_PATIENCE)

    @property
    def back_off(self) -> float:
        """Seconds to wait, after a failure, before the next replay is asked for."""
        doublings = min(self.failures - 1, 16)
        return min(BACK_OFF * 2.0**doublings, LONGEST_BACK_OFF)


class HeldBatches:
    """Batches with their sequences, in the order in which they came, of at most `max_bytes`.

    A single batch may be larger.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def last(self) -> int:
        """The sequence of the last held batch; -1 where none is held."""
        return self._batches[-1][0] if self._batches else -1

    def hold(self, sequence: int, payload: bytes) -> bool:
        """Hold one more batch; return whether there was room. Without room, earlier ones are dropped."""
        has_room = self._bytes + len(payload) <= self._max_bytes
        if not has_room:
            # The batches let go show as a gap after the replay, and are asked for again.
            self.take()
        self._batches.append((sequence, payload))
        self._bytes += len(payload)
        return has_room

    def take(self) -> deque[tuple[int, bytes]]:
        """Return all held batches, and hold none from here on."""
        taken, self._batches = self._batches, deque()
        self._bytes = 0
        return taken
