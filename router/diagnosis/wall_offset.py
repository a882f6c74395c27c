"""Converts a monotonic clock's time to Unix time, even after the machine's clock was set."""

import time
from collections.abc import Callable

STEP_SECONDS = 0.05
"""The clock was set if it has moved by more than this against the monotonic one. Smaller steps are left
out, so that the same moment is told as the same number."""


class WallOffset:
    """Returns what to add to a time of `clock` to get a time of `wall`, Unix time in seconds."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._clock = clock
        self._offset = wall() - clock()

    def __call__(self) -> float:
        """Return the present offset."""
        offset = self._wall() - self._clock()
        if abs(offset - self._offset) > STEP_SECONDS:
            self._offset = offset
        return self._offset
