"""How calls end when the router does: those that were begun are answered, and nobody is cut off.

A gRPC server that stops cancels whatever it has not begun to answer, and a caller cannot tell that from
its own deadline. So it stops last: first all are answered, while health says that others are to be
asked; then new calls are refused with a status that callers try again elsewhere, and streams are closed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

QUIET = 0.1
"""Share of the time for which no call may have come for callers to have gone: one that a busy machine
holds up is not gone, and its next call would be cut off."""
REFUSING = 0.5
"""Share of the time from which on new calls are refused: callers have had the other to go."""
PAUSE = 0.01


class EndingError(Exception):
    """The router takes no more calls."""

    def __init__(self) -> None:
        super().__init__("the router is about to end; ask another one")


class Drain:
    """Knows which calls are being answered. `clock` tells seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._in_flight = 0
        self._streams = 0
        self._last = clock()
        """When a call or a stream's request came last."""
        self._refuses = asyncio.Event()
        self._reading: set[asyncio.Task[Any]] = set()
        """Those that wait for a stream's next request."""

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer a call within the context. Raises EndingError where it comes too late."""
        self._last = self._clock()
        if self._refuses.is_set():
            raise EndingError
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def each(self, requests: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield a stream's requests. Raises EndingError where the router ends before the stream does."""
        task = asyncio.current_task()
        assert task is not None
        self._streams += 1
        try:
            while not self._refuses.is_set():
                self._reading.add(task)
                try:
                    request = await anext(requests)
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    if self._refuses.is_set() and not task.uncancel():
                        break
                    raise
                finally:
                    self._reading.discard(task)
                self._last = self._clock()
                yield request
            raise EndingError
        finally:
            self._streams -= 1

    @property
    def open(self) -> int:
        """How many calls and streams have not ended."""
        return self._in_flight + self._streams

    async def run(self, seconds: float) -> None:
        """Let callers go, and return when they have, or when so many seconds are over."""
        begun = self._clock()
        while self._in_flight or not self._is_quiet(QUIET * seconds):
            if self._clock() - begun >= REFUSING * seconds:
                break
            await asyncio.sleep(PAUSE)
        self._refuses.set()
        for task in self._reading:
            task.cancel()
        while self._in_flight or self._streams or not self._is_quiet(QUIET * seconds):
            if self._clock() - begun >= seconds:
                break
            await asyncio.sleep(PAUSE)

    def _is_quiet(self, seconds: float) -> bool:
        return self._clock() - self._last >= seconds
