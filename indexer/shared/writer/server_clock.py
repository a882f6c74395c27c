"""The clock of the server that has a pod's record, as far as its replies show it. Sans-I/O.

A write that is held up on its way says things that were true when it was sent. The server finds out how
long the way took: the writer says how much time its clock can have shown at least when the writer sent
the write, and the server compares that with its clock when the write arrives. Only differences
between two times of each clock matter, so the two clocks are never compared.
"""

import math
from collections.abc import Callable

LONGEST = 60.0
"""Seconds for which a reply counts: clocks that differ by 100 ppm are 6 ms apart by then."""


class ServerClock:
    """The least that the server's clock can show now. `clock` gives the writer's own time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said = 0
        self._heard_at = -math.inf

    def heard(self, milliseconds: int) -> None:
        """Take the server's time from a reply that came just now."""
        self._said, self._heard_at = milliseconds, self._clock()

    def at_least(self) -> int | None:
        """Return the least that it can show now, in milliseconds; None where that is not known."""
        since = self._clock() - self._heard_at
        return self._said + math.floor(since * 1000) if since <= LONGEST else None
