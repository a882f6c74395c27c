"""A caller's time, shared by what is awaited one after the other."""

import asyncio


class TimeLeft:
    """What is left of some seconds that began when it was made; on the running loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds

    def seconds(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._end - self._loop.time())
