"""Drains calls when the router ends: calls that have begun are answered, none is cut off.

A gRPC server that stops cancels calls that it has not begun to answer; to callers this looks like their
own deadline. So the server stops last: first all calls are answered, while the health check fails so
that callers go elsewhere; then new calls are refused with a status that callers retry, and streams are
closed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

QUIET = 0.1
"""Share of the drain time without a new call after which callers count as gone; not less, since a
caller on a busy machine may pause between calls."""
REFUSING = 0.5
"""Share of the drain time after which new calls are refused."""
PAUSE = 0.01


class EndingError(Exception):
    """A call is refused because the router ends."""

    def __init__(self) -> None:
        super().__init__("the router is about to end; ask another one")


class Drain:
    """Counts the calls that are being answered. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._in_flight = 0
        self._streams = 0
        self._last = clock()
        """Time of the last call or request of a stream."""
        self._refuses = asyncio.Event()
        self._reading: set[asyncio.Task[Any]] = set()
        """Tasks that wait for a stream's next request."""

    def begin(self) -> None:
        """Count a call, until `end`. Raises EndingError if new calls are refused."""
        self._last = self._clock()
        if self._refuses.is_set():
            raise EndingError
        self._in_flight += 1

    def end(self) -> None:
        """End the count of a call."""
        self._in_flight -= 1

    async def each(self, requests: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yield a stream's requests. Raises EndingError if the router ends before the stream does."""
        with self.streaming():
            while True:
                try:
                    request = await self.before_end(partial(anext, requests))
                except StopAsyncIteration:
                    return
                yield request

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count a stream while the context is open."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    async def before_end(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return a stream's next request. Raises EndingError if the router ends before it comes."""
        task = asyncio.current_task()
        assert task is not None
        if self._refuses.is_set():
            raise EndingError
        self._reading.add(task)
        try:
            request = await read()
        except asyncio.CancelledError:
            if self._refuses.is_set() and not task.uncancel():
                raise EndingError from None
            raise
        finally:
            self._reading.discard(task)
        self._last = self._clock()
        return request

    @property
    def open(self) -> int:
        """The number of calls and streams that have not ended."""
        return self._in_flight + self._streams

    async def run(self, seconds: float) -> None:
        """Drain; return when callers have gone, or after `seconds`."""
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
