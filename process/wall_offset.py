"""What makes Unix time of a monotonic clock's time, even after the machine's clock was set."""

import time
from collections.abc import Callable

STEP_SECONDS = 0.05
"""The clock was set if it has moved by more than this against the monotonic one. Smaller steps are left
out, so that the same moment is told as the same number."""


class WallOffset:
    """Returns what to add to a time of `clock` for seconds since the Unix epoch, which `wall` tells."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._clock = clock
        self._offset = wall() - clock()

    def __call__(self) -> float:
        """Return the offset of now."""
        offset = self._wall() - self._clock()
        if abs(offset - self._offset) > STEP_SECONDS:
            self._offset = offset
        return self._offset
