"""How fast a rank's modelled seconds pass; slowed down and stopped at will."""

import asyncio
from collections.abc import Awaitable, Callable


class Pace:
    """Turns modelled seconds into those of a clock. `sleep` takes the latter."""

    def __init__(
        self, sleep: Callable[[float], Awaitable[None]], *, speed: float = 1.0, factor: float = 1.0
    ) -> None:
        self.factor = factor
        """How many times longer a step takes than it should: a fault."""
        self._speed = speed
        self._sleep = sleep
        self._going = asyncio.Event()
        self._going.set()

    def seconds(self, modelled: float) -> float:
        """Return how long something takes that is modelled to take so many seconds."""
        return modelled * self.factor / self._speed

    @property
    def hung(self) -> bool:
        """Whether steps never end."""
        return not self._going.is_set()

    def hang(self, hung: bool) -> None:
        """Let the step under way never end, or end after all."""
        if hung:
            self._going.clear()
        else:
            self._going.set()

    async def sleep(self, seconds: float) -> None:
        """Let so many seconds of the clock pass, and wait for the end of a hang."""
        await self._sleep(seconds)
        await self._going.wait()
