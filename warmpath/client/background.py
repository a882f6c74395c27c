"""Runs what a client does behind its caller's back: in an event loop, or in a thread."""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from warmpath.client.reports import Told

CATCH_UP_SECONDS = 0.01


class Task:
    """Makes calls of reports in a task of the loop in which `catch_up` was called."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """`call` makes one, and returns whether another is to be made."""
        self._call = call
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._task: asyncio.Task[None] | None = None

    async def catch_up(self, latest: "Future[bool] | None" = None) -> None:
        """Let a started call begin, so that its message goes out before the caller's next."""
        del latest
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        await asyncio.sleep(0)

    def start(self, *, is_awaited: bool) -> None:
        """Make calls, unless the loop is closed; any thread may ask for it."""
        del is_awaited
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if threading.get_ident() == self._thread:
            self._create()
        else:
            with suppress(RuntimeError):  # the loop was closed just now
                loop.call_soon_threadsafe(self._create)

    def _create(self) -> None:
        if self._loop is not None:
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while await self._call():
            pass

    async def wait(self, told: Told) -> bool:
        """Return the answer to a report. Raises TimeoutError at its deadline."""
        return await asyncio.wait_for(asyncio.wrap_future(told.known), told.left())

    async def finish(self, seconds: float) -> None:
        """Wait until no report waits, for at most `seconds`; later ones are not sent."""
        # A start by another thread becomes a task in the loop's next turn.
        await asyncio.sleep(0)
        self._loop = None
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()


class Thread:
    """Makes calls of reports in a thread that does not keep a program from ending."""

    def __init__(self, call: Callable[..., bool]) -> None:
        """`call` makes one, `is_alone` with one report, and returns whether another is to be made."""
        self._call = call
        self._starts: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True: make calls; False: end."""
        self._thread: threading.Thread | None = None

    def catch_up(self, latest: "Future[bool] | None" = None) -> None:
        """Wait for the answer to this thread's latest report, at most CATCH_UP_SECONDS."""
        if latest is not None:
            with suppress(TimeoutError):
                latest.result(CATCH_UP_SECONDS)

    def start(self, *, is_awaited: bool) -> None:
        """Make calls; where the caller waits for its report, it makes that one's itself."""
        if is_awaited and not self._call(is_alone=True):
            return
        if self._thread is None:
            name = "warmpath-reports"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._starts.put(True)

    def _run(self) -> None:
        while self._starts.get():
            while self._call():
                pass

    def wait(self, told: Told) -> bool:
        """Return the answer to a report. Raises TimeoutError at its deadline."""
        return told.known.result(told.left())

    def finish(self, seconds: float) -> None:
        """Wait until no report waits, for at most `seconds`; later ones are not sent."""
        self._starts.put(False)
        if self._thread is not None:
            self._thread.join(seconds)
