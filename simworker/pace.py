"""An engine that is slower than it should be, or hangs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from simworker.engine import Engine, Generation, Load

EventT_co = TypeVar("EventT_co", covariant=True)


class Pace:
    """How fast a rank's steps pass. `sleep` takes seconds."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.factor = 1.0
        """How many times longer a step takes than it is modelled."""
        self._sleep = sleep
        self._going = asyncio.Event()
        self._going.set()

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
        """Let a step's time pass."""
        await self._sleep(seconds)
        await self._going.wait()


class PacedEngine(Generic[EventT_co]):
    """An engine whose steps take as long as a pace makes them; else the engine it wraps."""

    def __init__(self, engine: Engine[EventT_co], pace: Pace) -> None:
        self._engine = engine
        self._pace = pace

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return self._engine.busy

    def submit(self, generation: Generation) -> None:
        """Take a request. Raises RefusedError where it can never be served."""
        self._engine.submit(generation)

    def abort(self, request_id: str) -> None:
        """Drop a request."""
        self._engine.abort(request_id)

    def begin_step(self, horizon: float = 0.0) -> float:
        """Schedule a step; return its seconds."""
        return self._engine.begin_step(horizon / self._pace.factor) * self._pace.factor

    def end_step(self) -> Sequence[EventT_co]:
        """End the step begun; return what happened to the cache."""
        return self._engine.end_step()

    def load(self) -> Load:
        """Return the figures that metrics show."""
        return self._engine.load()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False while requests hold blocks."""
        return self._engine.reset_prefix_cache()
