"""Runs an engine in real time: each step takes its modelled seconds, at a pace.

The shell keeps the moment at which each step *should* end: the next steps make up for a step that
ended late. It does not sleep for less than `SHORTEST_SLEEP`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from warmpath.lab.simworker.engine import Engine, Generation


class Pace:
    """Turns modelled seconds into seconds of the clock by which `sleep` waits."""

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


SHORTEST_SLEEP = 0.002
"""Seconds of the shortest sleep: an event loop does not keep to shorter ones anyway."""

MOST_BEHIND = 1.0
"""Seconds of delay that later steps make up for; with more, the machine is too slow for the speed."""

EventT = TypeVar("EventT")


class EngineShell(Generic[EventT]):
    """Runs one engine. `clock` returns seconds; `announce` takes a step's events."""

    def __init__(
        self,
        engine: Engine[EventT],
        announce: Callable[[Sequence[EventT]], None],
        *,
        clock: Callable[[], float],
        pace: Pace,
    ) -> None:
        self.engine = engine
        self.behind = 0.0
        """The longest delay for which later steps did not make up, seconds; 0 for none."""
        self._announce = announce
        self._clock = clock
        self._pace = pace
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, generation: Generation) -> None:
        self.engine.submit(generation)
        self._idle.clear()
        self._wake.set()

    async def idle(self) -> None:
        """Wait until the engine has nothing to do, copies to and from host memory included."""
        await self._idle.wait()

    async def run(self) -> None:
        """Run the engine's steps while it has requests, and wait for new ones otherwise.

        It ends only when it is cancelled.
        """
        try:
            await self._run()
        finally:
            self._idle.set()

    async def _run(self) -> None:
        due = self._clock()
        while True:
            if not self.engine.busy:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                due = self._clock()
            due += self._pace.seconds(self.engine.begin_step())
            left = due - self._clock()
            if left < -MOST_BEHIND:
                self.behind = max(self.behind, -left)
                due -= left
            # A step that is late awaits too, so that the server can answer.
            await self._pace.sleep(left if left >= SHORTEST_SLEEP else 0)
            events = self.engine.end_step()
            if events:
                self._announce(events)
