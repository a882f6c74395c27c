"""Threads that tokenise; a thread that hangs is given up and replaced.

A thread cannot be killed, so its memory is lost until its work ends. The number of lost threads is
bounded; beyond that bound they are not replaced.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


class WorkFailedError(Exception):
    """A worker crashed, took too long, or none was left."""


Queue = SimpleQueue[Callable[[], None] | None]
"""The work of a thread, which ends at None."""


def _new_thread(name: str) -> Queue:
    queue: Queue = SimpleQueue()

    def run() -> None:
        while (work := queue.get()) is not None:
            work()

    # A daemon, so that a hanging thread does not keep the process from ending.
    threading.Thread(target=run, name=name, daemon=True).start()
    return queue


class Workers:
    """`count` workers. Use from one event loop; `close` them at the end.

    A call that takes longer than `hang_seconds`, or is cancelled, loses its worker. That worker is
    replaced unless more than `most_lost` are lost.
    """

    def __init__(self, count: int, *, hang_seconds: float, most_lost: int) -> None:
        self.lost = 0
        """Number of threads that hang and were given up."""
        self._hang_seconds = hang_seconds
        self._most_lost = most_lost
        self._wanted = self._count = count
        self._begun = 0
        self._idle: deque[Queue] = deque()
        self._waiting: deque[asyncio.Future[Queue]] = deque()
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        self._begun += 1
        self._free(_new_thread(f"tokenizer-{self._begun}"))

    def _free(self, worker: Queue) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(worker)
                return
        self._idle.append(worker)

    async def _take(self) -> Queue:
        if self._idle:
            return self._idle.popleft()
        if not self._count:
            raise WorkFailedError(f"all threads hang; {self.lost} were given up")
        waiting: asyncio.Future[Queue] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and not waiting.exception():
                self._free(waiting.result())
            raise

    def _fail_waiting(self, reason: str) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(WorkFailedError(reason))
        self._waiting.clear()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` on a thread and return its result.

        Raises the error of `work`, and WorkFailedError if `work` crashes, if it takes longer than
        `hang_seconds`, or if no thread is left.
        """
        worker = await self._take()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Result] = loop.create_future()

        def finish(result: Result | None, error: BaseException | None) -> None:
            if ended.cancelled():
                self._return(worker)
            elif error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)  # type: ignore[arg-type]

        def deliver(result: Result | None, error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result, error)

        worker.put(lambda: deliver(*outcome(work)))
        try:
            done, _ = await asyncio.wait((ended,), timeout=self._hang_seconds)
        except asyncio.CancelledError:
            self._give_up(ended)
            raise
        if done:
            self._free(worker)
            return ended.result()
        self._give_up(ended)
        raise WorkFailedError(f"it took longer than {self._hang_seconds:g} s")

    def _give_up(self, ended: "asyncio.Future[Result]") -> None:
        ended.cancel()
        self.lost += 1
        if self.lost <= self._most_lost:
            self._start()
            return
        self._count -= 1
        if not self._count:
            self._fail_waiting(f"all threads hang; {self.lost} were given up")

    def _return(self, worker: Queue) -> None:
        self.lost -= 1
        if self._count < self._wanted:
            self._count += 1
            self._free(worker)
        else:
            worker.put(None)

    def close(self) -> None:
        """End the idle threads and fail the calls that wait for a thread."""
        self._fail_waiting("the threads were ended")
        while self._idle:
            self._idle.popleft().put(None)


def outcome(work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    """Run `work`; return its result and None, or None and its error."""
    try:
        return work(), None
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:  # noqa: BLE001  passed on
        return None, error
    except BaseException as error:  # noqa: BLE001  a panic in Rust
        return None, WorkFailedError(f"it crashed: {type(error).__name__}")
