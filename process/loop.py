"""Event loops: one answers calls, another follows the fleet in a thread of its own.

Ingestion runs in its own thread so that a Score does not wait behind a flood of events. Its compiled
code (`indexer.compiled`) releases the interpreter lock, and its Python code runs in pieces shorter than
the lock's switch interval. Long loops on the loop that answers calls let other tasks run in between, and
a watch measures by how much that loop wakes sleepers late.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self, TypeVar

T = TypeVar("T")

SWITCH_SECONDS = 0.0005
"""Switch interval of the interpreter lock, in seconds; Python's default is ten times as long."""


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, uvloop's if it is installed."""
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """An event loop that runs in its own thread while the context is open."""

    def __init__(self, name: str) -> None:
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def __aenter__(self) -> Self:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def soon(self, function: Callable[..., None], *args: object) -> None:
        """Have the thread's loop call a function, from any thread; do nothing once it is closed."""
        # The loop is closed when the process is about to end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    async def enter(self, context: AbstractAsyncContextManager[T], stack: AsyncExitStack) -> T:
        """Enter a context in the thread; the same thread leaves it when the stack closes."""
        entered = await self.call(context.__aenter__())
        stack.push_async_exit(lambda *_: self.call(context.__aexit__(None, None, None)))
        return entered


async def tasked() -> None:
    """Return in a task, which `asyncio.timeout` needs: one is made for a `Begun` that waits."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


class Begun(Coroutine[Any, Any, T]):
    """A coroutine that has run up to its first wait, or to its end, in the caller's own step.

    Where nothing waits, it needs no task, no timeout and no turn of the loop. Otherwise it goes on as
    the coroutine of a task, or where it is awaited. Making one raises the coroutine's errors.
    """

    __slots__ = ("_first", "_work", "is_over", "result")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.is_over = False
        self.result: T
        """What the coroutine has returned, if it `is_over`."""
        try:
            self._first = [work.send(None)]
        except StopIteration as end:
            self.is_over, self.result = True, end.value

    def send(self, value: Any) -> Any:
        return self._first.pop() if self._first else self._work.send(value)

    def throw(self, *error: Any) -> Any:
        if self._first and isinstance(waited := self._first.pop(), asyncio.Future):
            # As the cancellation of a task does, to which this wait was not known yet.
            waited.cancel()
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        value = None
        try:
            while True:
                step = self.send(value)
                try:
                    value = yield step
                except BaseException as error:  # noqa: BLE001  the coroutine's, to handle
                    self._first = [self.throw(error)]
        except StopIteration as end:
            result: T = end.value
            return result

    async def within(self, seconds: float) -> T:
        """Return its result. Raises TimeoutError after `seconds`, and its errors."""
        try:
            await tasked()
        except asyncio.CancelledError as error:
            self._first = [self.throw(error)]
        async with asyncio.timeout(seconds):
            return await self


PAUSE = 0.1
"""Seconds of each sleep of `watch_lag`: it sees each block that is longer, and a share of shorter ones.
Sleeps of 20 ms were a third of all that an idle router of four pods does."""


async def watch_lag(
    observe: Callable[[float], None],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Call `observe` with the seconds by which each sleep was late, for ever. `clock` is monotonic."""
    while True:
        begun = clock()
        await sleep(PAUSE)
        observe(max(0.0, clock() - begun - PAUSE))


MANY_RANKS = 512
"""Scoring or weighing more ranks takes milliseconds, so other tasks run before the next step."""


async def turn_after(ranks: int) -> None:
    """Let other tasks of the event loop run if the last step handled more `ranks` than MANY_RANKS."""
    if ranks > MANY_RANKS:
        await asyncio.sleep(0)


async def in_turns(things: Iterable[T], at_once: int) -> AsyncIterator[T]:
    """Yield each of `things`; let other tasks of the event loop run after every `at_once` of them."""
    for number, one in enumerate(things, 1):
        yield one
        if not number % at_once:
            await asyncio.sleep(0)
