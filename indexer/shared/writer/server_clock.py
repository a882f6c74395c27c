"""The clock of the server that has a pod's record, as far as its replies show it. Sans-I/O.

A write that is held up on its way says things that were true when it was sent. The server finds out how
long the way took: the writer says how much time its clock can have shown at least when the writer sent
the write, and the server compares that with its clock when the write arrives. Only differences
between two times of each clock matter, so the two clocks are never compared.
"""

import math
from collections.abc import Callable

DRIFT = 0.1
"""By how much of the time since a reply the server's clock may have gone slower than the writer's.

chrony corrects a wrong clock by up to a twelfth (`maxslewrate`), and monotonic clocks with it.
"""
SET_BACK = 10
"""Milliseconds by which the server's clock may be behind a time that it must have reached."""


class ServerClock:
    """The least that the server's clock can show now. `clock` gives the writer's own time in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said = 0
        self._heard_at = -math.inf

    def heard(self, milliseconds: int, sent: int | None) -> None:
        """Take the server's time from a reply that came just now; `sent` was `at_least` at its request.

        Of several replies the one that was read soonest says most: others waited, perhaps because
        this process stood still.
        """
        bound = self.at_least()
        is_set_back = sent is not None and milliseconds < sent - SET_BACK
        if bound is None or milliseconds >= bound or is_set_back:
            self._said, self._heard_at = milliseconds, self._clock()

    def at_least(self) -> int | None:
        """Return the least that it can show now, in milliseconds; None before the first reply."""
        if self._heard_at == -math.inf:
            return None
        since = self._clock() - self._heard_at
        return self._said + math.floor(since * (1 - DRIFT) * 1000)
