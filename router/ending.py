"""The end of a router, step by step; each step has its line in the log.

not ready ─► new calls are still answered ─► GOAWAY, new calls are refused ─► calls end ─► cut off
(drain-delay-seconds)                (drain-seconds)

A gRPC server that stops cancels calls that it has not begun to answer; to callers this looks like their
own deadline. So the server stops last: before that new calls are refused with a status that callers
retry, streams are closed between two requests, and calls that have begun are answered.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from warmpath.router.config.schema import ServerTable
from warmpath.router.readiness import Readiness

log = logging.getLogger(__name__)

T = TypeVar("T")

QUIET = 0.1
"""Share of the drain time without a new call after which callers count as gone; not less, since a
caller on a busy machine may pause between calls."""
PAUSE = 0.01


class EndingError(Exception):
    """A call is refused because the router ends."""

    def __init__(self) -> None:
        super().__init__("the router is about to end; ask another one")


class Drain:
    """Counts the calls that are being answered. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.calls = 0
        """The number of calls that are being answered."""
        self.streams = 0
        """The number of open streams."""
        self.refused = 0
        """The number of calls that were refused so far, because the router ends."""
        self._last = clock()
        """Time of the last call or request of a stream."""
        self._refuses = asyncio.Event()
        self._reading: set[asyncio.Task[Any]] = set()
        """Tasks that wait for a stream's next request."""

    def begin(self) -> None:
        """Count a call, until `end`. Raises EndingError if new calls are refused."""
        self._last = self._clock()
        if self._refuses.is_set() and self.turns_away():
            raise EndingError
        self.calls += 1

    def turns_away(self) -> bool:
        """Return whether new calls are refused; if so, count one as refused."""
        if not self._refuses.is_set():
            return False
        self._last = self._clock()
        self.refused += 1
        return True

    def end(self) -> None:
        self.calls -= 1

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
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

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

    def refuse(self) -> None:
        """Refuse new calls from now on, and close each stream once its request is answered."""
        self._refuses.set()
        for task in self._reading:
            task.cancel()

    async def gone(self, seconds: float) -> None:
        """Return once no call and no stream is open and callers have gone, or after `seconds`."""
        begun = self._clock()
        while self.calls or self.streams or self._clock() - self._last < QUIET * seconds:
            if self._clock() - begun >= seconds:
                break
            await asyncio.sleep(PAUSE)


async def end_router(
    drain: Drain,
    readiness: Readiness,
    server: ServerTable,
    *,
    release: Callable[[], None],
    tell: Callable[[], None],
    go_away: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Take all steps that come before the end of the server.

    `release` lets go of the requests that wait for a pod. `tell` informs clients that watch the health.
    `go_away` tells clients to call no more on their connections, and returns their number.
    """
    # Nobody sends calls to a router that is not ready, so nobody has to learn that it ends.
    delay = server.drain_delay_seconds if readiness.ready() else 0.0
    readiness.end()
    tell()
    log.info(
        "the process was asked to end: it is not ready from now on; calls are answered for %g s"
        " more, %d calls and %d streams are in progress",
        delay, drain.calls, drain.streams,
    )  # fmt: skip
    if delay:
        await sleep(delay)
    drain.refuse()
    release()
    connections = go_away()
    log.info(
        "new calls are refused; GOAWAY on %d connections; %d calls and %d streams in progress have %g s",
        connections, drain.calls, drain.streams, server.drain_seconds,
    )  # fmt: skip
    await drain.gone(server.drain_seconds)
    log.info(
        "%d calls were refused since; %d calls and %d streams are cut off",
        drain.refused, drain.calls, drain.streams,
    )  # fmt: skip
