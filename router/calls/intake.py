"""Reads each call's message when `InFlight` has room for it; refuses calls with a status.

Until a message is asked for, HTTP/2's flow control, or TCP's, bounds the bytes that arrive.

Calls and streams have separate limits, since a stream may wait long for its next message. Before that a
call waits for its turn of the thread (`router.admission`), and so does each message of a stream.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import lru_cache, partial
from typing import Any, TypeVar

from warmpath.h2grpc.method import Method, Refusal, RefusedError
from warmpath.router.admission.admission import Admission, BusyError, Turn
from warmpath.router.admission.in_flight import InFlight, LateError, NoPlaceError
from warmpath.router.admission.waiting_calls import CallState
from warmpath.router.calls.failures import reason_of, refusal_of
from warmpath.router.metrics.calls import Metrics
from warmpath.router.queue.request import GIVE_ROOM
from warmpath.router.transport.call import Call

STREAMS = 16
"""Streams that may wait for their next message at once, each with room for the largest message. One that
has waited for long is ended if others wait for its room."""

STANDARD = 4
"""Calls, and streams, of the health and reflection services that may be read at once."""

MESSAGE_SECONDS = 2.0
"""Maximum time from a call's headers to its first message, and for later messages while other calls
wait for room."""

LOOK_SECONDS = 0.1
"""Seconds between two checks for late messages, while calls wait."""

T = TypeVar("T")

Reading = Callable[[], Awaitable[bytes | None]]
"""Reads the next message; None: no more comes."""

TOO_MANY = (
    "too many calls wait for their message to be read: the messages of all calls may have %d bytes "
    "(limits.max-in-flight-bytes)"
)
TOO_MANY_STREAMS = (
    "too many streams wait for room: the messages of all streams may have %d bytes, and each stream "
    "keeps room for its next one"
)
LATE = "the message did not come within %g s, and other calls wait for the room that is kept for it"


@lru_cache(8)
def too_busy(longest: float, seconds: float) -> Refusal:
    """Return the status of a BusyError with these values; kept, as thousands a second may need it."""
    return refusal_of(BusyError(longest, seconds))


class Intake:
    """Reads the message of each call when it has its turn and there is room for it."""

    def __init__(
        self,
        calls: InFlight,
        streams: InFlight,
        counts: Metrics,
        *,
        seconds: float = MESSAGE_SECONDS,
        admission: Admission | None = None,
    ) -> None:
        """Count the messages of unary calls in `calls`, and those of streams in `streams`.

        Without an `admission` calls begin at once.
        """
        self._admission = admission
        self.calls = calls
        self.streams = streams
        self._counts = counts
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def method(
        self,
        name: str,
        answer: Callable[[bytes, Call], Awaitable[None]],
        *,
        is_urgent: bool = False,
        at_once: Callable[[bytes, Call], bytes | None] | None = None,
        writes: bool = False,
    ) -> Method:
        """Return the method of a call with one message; `answer` takes that, and puts the answer.

        Urgent calls are cheap, and begin before all others. `at_once` returns the answer to a message,
        or None if it would have to wait, and then has changed nothing. An `answer` that `writes` learns
        whether its answer could be sent.
        """

        async def run(call: Call) -> None:
            async def put(message: bytes) -> None:
                quick = at_once(message, call) if at_once is not None and not writes else None
                if quick is None:
                    await answer(message, call)
                else:
                    call.put(quick)

            await self.answered(
                name, call.peer, call.read, lambda: call.next_bytes, put, is_urgent=is_urgent
            )

        quick = None if at_once is None else partial(self._answered_at_once, at_once)
        return Method(run, quick, is_unary=not writes)

    def _answered_at_once(
        self, answer: Callable[[bytes, Call], bytes | None], message: bytes, call: Call
    ) -> bytes | None:
        """Return an answer if no call waits, neither for its turn nor for room."""
        admission = self._admission
        if self.calls.waiting or (admission is not None and not admission.is_free):
            return None
        begun = time.perf_counter()
        # An error is an answer, too.
        answered: bytes | None = b""
        try:
            answered = answer(message, call)
        finally:
            if answered is not None:
                self.calls.remember(call.peer, came=True)
                if admission is not None:
                    admission.answered_at_once(time.perf_counter() - begun)
        return answered

    async def answered(
        self,
        method: str,
        peer: str,
        reading: Reading,
        size: Callable[[], int | None],
        answer: Callable[[bytes], Awaitable[T]],
        *,
        is_urgent: bool = False,
    ) -> T:
        """Wait for a call's turn, then for room for its message; read that, and return its answer.

        `size` returns the message's bytes if they are known, once its turn has come. Raises
        RefusedError, which is counted.
        """
        waiting = Waiter()
        try:
            if wait := begins(self._admission, waiting, peer, is_urgent=is_urgent):
                await wait
            message = await self._message(self.calls, waiting, peer, reading, size())
            if message is None:
                raise asyncio.CancelledError("the caller has gone")
            # A pick that waits counts in the queue's own limit meanwhile.
            GIVE_ROOM.set(waiting.leave)
            return await answer(message)
        except (NoPlaceError, LateError, BusyError) as error:
            text, limit = TOO_MANY % self.calls.limit, "limits.max-in-flight-bytes"
            refused = self._refused(error, text, limit=limit)
            code = refused.refusal.code.name
            self._counts.answered(method, code, waiting.lasted, reason_of(error))
            raise refused from None
        finally:
            waiting.leave()

    async def messages(self, call: Call) -> AsyncGenerator[tuple[bytes, Callable[[], None]], None]:
        """Yield each message of a stream, with a function to call after it was answered.

        Raises RefusedError.
        """
        while True:
            waiting = Waiter()
            try:
                message = await self._message(
                    self.streams, waiting, call.peer, call.read, call.next_bytes
                )
                if message is not None and (
                    wait := begins(self._admission, waiting, call.peer, is_patient=True)
                ):
                    await wait
            except BaseException as error:
                waiting.leave()
                if isinstance(error, NoPlaceError | LateError):
                    raise self._refused(error, TOO_MANY_STREAMS % self.streams.limit) from None
                raise
            if message is None:
                waiting.leave()
                return
            yield message, waiting.leave

    def _refused(self, error: Exception, too_many: str, **facts: str) -> RefusedError:
        if isinstance(error, BusyError):
            refusal = too_busy(error.longest, error.seconds)
        elif isinstance(error, LateError):
            refusal = refusal_of(error, LATE % error.seconds)
        else:
            # By then the calls whose message is late have lost their room.
            refusal = refusal_of(error, too_many, retry_seconds=self._seconds, **facts)
        return RefusedError(refusal)

    async def _message(
        self, room: InFlight, waiting: "Waiter", peer: str, reading: Reading, size: int | None
    ) -> bytes | None:
        """Return the next message, with a place in `room` until `leave`; None if no more comes.

        Raises NoPlaceError and LateError.
        """
        place = room.enter(peer, waiting.wake, size)
        waiting.leave = partial(room.leave, place)
        if place.state is CallState.WAITING:
            self._look_later()
            await waiting.woken()
            room.reads(place)
        waiting.task = asyncio.current_task()
        try:
            message = await reading()
        except asyncio.CancelledError:
            late, task = waiting.late, waiting.task
            if late is not None and task is not None and not task.uncancel():
                raise late from None
            raise
        if message is not None:
            room.has_read(place, len(message))
        return message

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        for room in (self.calls, self.streams):
            room.end_late()
        if self.calls.waiting or self.streams.waiting:
            self._look_later()


class Waiter:
    """A call, or a stream's next message: it waits for its turn, for room, and for its bytes."""

    __slots__ = ("_begun", "_turn", "late", "leave", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        """The task that waits, once it does."""
        self.leave: Callable[[], None] = lambda: None
        """Gives up its place, if it has one."""
        self.late: Exception | None = None
        """The error for which the reading task was cancelled."""
        self._turn: asyncio.Future[None] | None = None
        self._begun = time.perf_counter()

    @property
    def lasted(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self._begun

    async def woken(self) -> None:
        """Wait until it is woken. Raises the error with which it is."""
        self.task = asyncio.current_task()
        self._turn = asyncio.get_running_loop().create_future()
        await self._turn

    def wake(self, error: Exception | None) -> None:
        """Let it go on, or end it with an error."""
        turn = self._turn
        if turn is None or turn.done():
            if error is not None and self.task is not None:
                self.late = error
                self.task.cancel()
        elif error is None:
            turn.set_result(None)
        else:
            turn.set_exception(error)


def begins(
    admission: Admission | None, waiting: Waiter, peer: str, **kind: bool
) -> Awaitable[None] | None:
    """Return the wait until the work on a call begins; None: it begins now, as that of most does.

    `kind` is as for `Admission.enter`. Raises BusyError, as the wait may.
    """
    if admission is None:
        return None
    turn = admission.enter(peer, waiting.wake, **kind)
    return None if turn.begins else _begins(admission, turn, waiting)


async def _begins(admission: Admission, turn: Turn, waiting: Waiter) -> None:
    try:
        await waiting.woken()
    finally:
        admission.leave(turn)
