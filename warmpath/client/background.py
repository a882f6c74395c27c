"""Runs what a client does behind its caller's back: in an event loop, or in threads."""

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

MOST_WAITING = 10_000
"""The most works that wait or run; further ones are dropped, since none would end if a router hangs."""
THREADS = 4
CATCH_UP_SECONDS = 0.01


class Tasks:
    """Runs coroutines (works) as tasks of the loop in which `catch_up` was called, from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def catch_up(self) -> None:
        """Let all started works begin, so that their first message goes out before the caller's next."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        await asyncio.sleep(0)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a work, unless too many wait or the loop is closed."""
        loop = self._loop
        if loop is None or loop.is_closed() or len(self._tasks) >= MOST_WAITING:
            return
        if threading.get_ident() == self._thread:
            self._create(work)
        else:
            with suppress(RuntimeError):  # the loop was closed just now
                loop.call_soon_threadsafe(self._create, work)

    def _create(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._loop is None:
            return
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """Wait until all works are done, for at most `seconds`; later ones are not started."""
        # Those that another thread has just started become tasks in the loop's next turn.
        await asyncio.sleep(0)
        self._loop = None
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=seconds)
            for task in left:
                task.cancel()


class Threads:
    """Runs functions in a few threads, which do not keep a program from ending."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: queue.SimpleQueue[tuple[int, Callable[[], None]] | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._of_thread: Counter[int] = Counter()
        """The number of unfinished works that each thread has started."""
        self._is_over = False
        self._is_done = threading.Condition(self._lock)

    def catch_up(self) -> None:
        """Wait until the works that this thread has started are done, at most CATCH_UP_SECONDS."""
        thread = threading.get_ident()
        with self._lock:
            self._is_done.wait_for(lambda: not self._of_thread[thread], timeout=CATCH_UP_SECONDS)

    def start(self, work: Callable[[], None]) -> None:
        """Run a work, unless too many wait."""
        with self._lock:
            if self._is_over or self._unfinished >= MOST_WAITING:
                return
            thread = threading.get_ident()
            self._unfinished += 1
            self._of_thread[thread] += 1
            is_new = self._threads < min(self._unfinished, THREADS)
            self._threads += is_new
        self._works.put((thread, work))
        if is_new:
            threading.Thread(target=self._run, name="warmpath-reports", daemon=True).start()

    def _run(self) -> None:
        while (given := self._works.get()) is not None:
            thread, work = given
            try:
                work()
            finally:
                with self._lock:
                    self._unfinished -= 1
                    self._of_thread[thread] -= 1
                    if not self._of_thread[thread]:
                        del self._of_thread[thread]
                    self._is_done.notify_all()

    def finish(self, seconds: float) -> None:
        """Wait until all works are done, for at most `seconds`; later ones are not started."""
        with self._lock:
            self._is_over = True
            self._is_done.wait_for(lambda: not self._unfinished, timeout=seconds)
            for _ in range(self._threads):
                self._works.put(None)
