"""Runs what a client does behind its caller's back: in an event loop, or in threads."""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any

MOST_WAITING = 10_000
"""Works that wait or run at a time; further ones are dropped, as a router that hangs ends none."""
THREADS = 4


class Tasks:
    """Runs coroutines as tasks of the event loop that `bind` was called in; any thread may start one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self) -> None:
        """Use the running event loop."""
        self._loop = asyncio.get_running_loop()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a work, unless too many wait or the loop is closed."""
        if self._loop is None or len(self._tasks) >= MOST_WAITING:
            return
        try:
            self._loop.call_soon_threadsafe(self._create, work)
        except RuntimeError:
            # The loop was closed after the program's last await: nothing can be sent any more.
            return

    def _create(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """Wait until all works are done, for at most so many seconds; start none any more."""
        # Those started just before become tasks in the loop's next turn.
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
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._is_over = False
        self._is_done = threading.Condition(self._lock)

    def bind(self) -> None:
        """Do nothing: any thread may use it."""

    def start(self, work: Callable[[], None]) -> None:
        """Run a work, unless too many wait."""
        with self._lock:
            if self._is_over or self._unfinished >= MOST_WAITING:
                return
            self._unfinished += 1
            is_new = self._threads < min(self._unfinished, THREADS)
            self._threads += is_new
        self._works.put(work)
        if is_new:
            threading.Thread(target=self._run, name="warmpath-reports", daemon=True).start()

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work()
            finally:
                with self._lock:
                    self._unfinished -= 1
                    self._is_done.notify_all()

    def finish(self, seconds: float) -> None:
        """Wait until all works are done, for at most so many seconds; start none any more."""
        with self._lock:
            self._is_over = True
            self._is_done.wait_for(lambda: not self._unfinished, timeout=seconds)
            for _ in range(self._threads):
                self._works.put(None)
