"""The pace at which a rank's modelled seconds pass; faults slow it down and stop it."""

import asyncio
from collections.abc import Awaitable, Callable


class Pace:
    """Turns modelled seconds into seconds of a clock, which `sleep` takes."""

    def __init__(
        self, sleep: Callable[[float], Awaitable[None]], *, speed: float = 1.0, factor: float = 1.0
    ) -> None:
        self.factor = factor
        """How many times longer than modelled a step takes: above 1 it is a fault."""
        self._speed = speed
        self._sleep = sleep
        self._going = asyncio.Event()
        self._going.set()

    def seconds(self, modelled: float) -> float:
        """Return the clock's seconds in which `modelled` seconds pass."""
        return modelled * self.factor / self._speed

    @property
    def hung(self) -> bool:
        """Whether a fault keeps steps from ending at present."""
        return not self._going.is_set()

    def hang(self, hung: bool) -> None:
        """Keep the step under way from ending, or let it end."""
        if hung:
            self._going.clear()
        else:
            self._going.set()

    async def sleep(self, seconds: float) -> None:
        """Let `seconds` of the clock pass, and wait for the end of a hang."""
        await self._sleep(seconds)
        await self._going.wait()
