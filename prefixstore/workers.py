"""Threads that tokenise; one that hangs is given up and another takes its place.

A thread cannot be killed, so what it holds is lost until it ends by itself. How many may be lost is
bounded: past that no new ones are started.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


class WorkFailedError(Exception):
    """A worker did not finish its work."""


class Worker:
    """One thread, which does one thing at a time."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Not waited for at the end of the process: it may hang.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def give(self, work: Callable[[], None]) -> None:
        """Do this, after what was given before."""
        self._work.put(work)

    def end(self) -> None:
        """End the thread when it has done what it was given."""
        self._work.put(None)


class Workers:
    """A fixed number of workers. Use from one event loop; `close` them at the end."""

    def __init__(self, count: int, *, hang_seconds: float, most_lost: int) -> None:
        self.lost = 0
        """Threads that hang and were given up."""
        self._hang_seconds = hang_seconds
        self._most_lost = most_lost
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._wanted = self._count = count
        self._begun = 0
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        self._begun += 1
        self._idle.put_nowait(Worker(f"tokenizer-{self._begun}"))

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do something on a thread.

        Raises what it raises, and WorkFailedError where it breaks down, takes longer than
        `hang_seconds`, or no thread is left to do it.
        """
        if not self._count:
            raise WorkFailedError(f"all threads hang; {self.lost} were given up")
        worker = await self._idle.get()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Result] = loop.create_future()

        def finish(result: Result | None, error: BaseException | None) -> None:
            if ended.cancelled():
                self.lost -= 1
                if self._count < self._wanted:
                    self._count += 1
                    self._idle.put_nowait(worker)
                else:
                    worker.end()
            elif error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)  # type: ignore[arg-type]

        def tell(result: Result | None, error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result, error)

        def do() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  passed on
                tell(None, error)
            except BaseException as error:  # noqa: BLE001  what a crash in Rust raises
                tell(None, WorkFailedError(f"it crashed: {type(error).__name__}"))
            else:
                tell(result, None)

        worker.give(do)
        done, _ = await asyncio.wait((ended,), timeout=self._hang_seconds)
        if done:
            self._idle.put_nowait(worker)
            return ended.result()
        ended.cancel()
        self.lost += 1
        if self.lost <= self._most_lost:
            self._start()
        else:
            self._count -= 1
        raise WorkFailedError(f"it took longer than {self._hang_seconds:g} s")

    def close(self) -> None:
        """End the threads that do nothing."""
        while not self._idle.empty():
            self._idle.get_nowait().end()
