"""Threads for work that blocks, and processes for code that is not ours (`isolated`).

A thread that hangs is given up and does not delay the process's exit.

An executor's threads are joined at the interpreter's exit, so a download that hangs would keep the
process from ending; the threads here are daemons. A thread cannot be killed, so its memory is lost until
its work ends. `Waiting` counts the texts or chats that wait for them, and refuses too many.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


class WorkFailedError(Exception):
    """A worker crashed, took too long, or none was left."""


def in_own_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """Start `work` in a daemon thread; the future gets its result, even if nobody waits for it."""
    future: Future[Result] = Future()
    # From here on the future cannot be cancelled, so its result can always be set.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  the caller handles it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class Workers:
    """`count` threads. Use from one event loop; `close` them at the end.

    A call that takes longer than `hang_seconds`, or is cancelled, loses its thread. That thread is
    replaced unless more than `most_lost` are lost.
    """

    def __init__(self, count: int, *, hang_seconds: float, most_lost: int) -> None:
        self.lost = 0
        """Number of threads that hang and were given up."""
        self._hang_seconds = hang_seconds
        self._most_lost = most_lost
        self._wanted = self._count = count
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """The work of the threads; each ends when it gets None."""
        self._idle = asyncio.Semaphore(count)
        self._refusal = ""
        """Why no call gets a thread; `_idle` then lets all calls through, one after the other."""
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        def serve() -> None:
            while (work := self._work.get()) is not None:
                work()

        threading.Thread(target=serve, name="tokenizer", daemon=True).start()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` on a thread and return its result.

        Raises the error of `work`, and WorkFailedError if `work` crashes, if it takes longer than
        `hang_seconds`, or if no thread is left.
        """
        await self._idle.acquire()
        if self._refusal:
            self._idle.release()
            raise WorkFailedError(self._refusal)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Result] = loop.create_future()

        def finish(result: Result | None, error: BaseException | None) -> None:
            if ended.cancelled():
                self._return()
            elif error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)  # type: ignore[arg-type]

        def deliver() -> None:
            found = outcome(work)
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, *found)

        self._work.put(deliver)
        try:
            await asyncio.wait((ended,), timeout=self._hang_seconds)
        finally:
            if ended.cancel():  # it has not ended
                self._give_up()
            else:
                self._idle.release()
        if ended.cancelled():
            raise WorkFailedError(f"it took longer than {self._hang_seconds:g} s")
        return ended.result()

    def _give_up(self) -> None:
        self.lost += 1
        if self.lost <= self._most_lost:
            self._start()
        else:
            self._count -= 1
            if self._count or self._refusal:
                return
            self._refusal = f"all threads hang; {self.lost} were given up"
        self._idle.release()

    def _return(self) -> None:
        self.lost -= 1
        if self._count == self._wanted:
            self._work.put(None)
            return
        self._count += 1
        if self._refusal:
            self._refusal = ""
        else:
            self._idle.release()

    def close(self) -> None:
        """End the threads, each after its work, and fail the calls that wait for one."""
        for _ in range(self._count + self.lost):
            self._work.put(None)
        self._refusal = "the threads were ended"
        self._count = self._wanted
        self._idle.release()


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


ROOT = Path(__file__).absolute().parents[2]


def isolated(module: str) -> tuple[str, ...]:
    """Return the arguments with which Python runs a module's `main` and exits with its result.

    The environment, the user's packages and the working directory are not searched for modules. The
    process runs the same version of the code as this one, even if several are installed.
    """
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module} as m; sys.exit(m.main())"
    )
    return "-I", "-c", code


class FullError(Exception):
    """A text or chat is refused because too many, or too many bytes, wait already."""


class ClosedError(Exception):
    """The tokenizer pool or the renderer was closed."""


class Waiting:
    """Counts what waits; in errors, "4 `things` wait `aim`": "chats", "to be rendered", say."""

    def __init__(self, things: str, aim: str, *, most: int, most_bytes: int) -> None:
        self.count = 0
        self.bytes = 0
        self.refused = 0
        """How many were refused because too many, or too many bytes, were waiting."""
        self._things = things
        self._aim = aim
        self._most = most
        self._most_bytes = most_bytes

    def enter(self, size: int) -> None:
        """Count one more, of `size` bytes. Raises FullError."""
        if self.count >= self._most or self.bytes + size > self._most_bytes:
            self.refused += 1
            raise FullError(
                f"{self.count} {self._things} of {self.bytes} bytes wait {self._aim}; at most "
                f"{self._most} may, and limits.max-queued-bytes is {self._most_bytes}"
            )
        self.count += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        self.count -= 1
        self.bytes -= size
