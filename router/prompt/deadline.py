"""A caller's deadline, shared by the steps that are awaited one after the other."""

import asyncio


class TimeLeft:
    """The time left of `seconds` from the creation of this object, by the running loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds

    def seconds(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._end - self._loop.time())
