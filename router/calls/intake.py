"""Reads each call's message when `InFlight` has room for it; refuses calls with a status.

Until a message is asked for, HTTP/2's flow control, or TCP's, bounds the bytes that arrive.

Calls and streams have separate limits, since a stream may wait long for its next message. Before that a
call waits for its turn of the thread (`router.admission`), and so does each message of a stream.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any

from warmpath.h2grpc.method import Method, Refusal, RefusedError
from warmpath.router.admission.admission import Admission, BusyError
from warmpath.router.admission.in_flight import InFlight, LateError, NoPlaceError
from warmpath.router.admission.waiting import Turn
from warmpath.router.admission.waiting_calls import CallState, Reservation
from warmpath.router.calls.answering import AnswerCounts
from warmpath.router.calls.failures import reason_of, refusal_of
from warmpath.router.queue.give_room import GIVE_ROOM
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
    """Return the status of a BusyError with these values: there may be thousands of them a second."""
    return refusal_of(BusyError(longest, seconds))


class Intake:
    """Reads the message of each call when it has its turn and there is room for it."""

    def __init__(
        self,
        calls: InFlight,
        streams: InFlight,
        counts: AnswerCounts,
        *,
        seconds: float,
        admission: Admission | None = None,
    ) -> None:
        """Count the messages of unary calls in `calls`, and those of streams in `streams`.

        Without an `admission` calls begin at once.
        """
        self._admission = admission
        self._calls = calls
        self._streams = streams
        self._counts = counts
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def method(
        self,
        name: str,
        answer: Callable[[bytes, Call], Awaitable[None]],
        *,
        is_urgent: bool = False,
        at_once: Callable[[bytes], bytes | None] | None = None,
    ) -> Method:
        """Return the method of a call with one message; `answer` takes that, and puts the answer.

        Urgent calls are cheap, and begin before all others. `at_once` returns the answer to a message,
        or None if it would have to wait, and then has changed nothing.
        """

        async def run(call: Call) -> None:
            async with self.place(name, call.peer, is_urgent=is_urgent) as read:
                await answer(await read(call.read, call.next_bytes), call)

        quick = None if at_once is None else partial(self._answered_at_once, at_once)
        return Method(run, quick)

    def _answered_at_once(
        self, answer: Callable[[bytes], bytes | None], message: bytes, call: Call
    ) -> bytes | None:
        """Return an answer if no call waits, neither for its turn nor for room."""
        admission = self._admission
        if self._calls.waiting or (admission is not None and not admission.is_free):
            return None
        begun = time.perf_counter()
        # An error is an answer, too.
        answered: bytes | None = b""
        try:
            answered = answer(message)
        finally:
            if answered is not None:
                self._calls.has_come(call.peer)
                if admission is not None:
                    admission.answered_at_once(time.perf_counter() - begun)
        return answered

    @asynccontextmanager
    async def place(
        self, method: str, peer: str, *, is_urgent: bool = False
    ) -> AsyncIterator[Callable[[Reading, int | None], Awaitable[bytes]]]:
        """Wait for a call's turn; within the context its message may be read, and is kept.

        Yields a function that takes what reads the message, and its size in bytes if that is known; it
        waits for room first. Raises RefusedError, which is counted.
        """
        call = _Call()

        async def read(reading: Reading, size: int | None) -> bytes:
            message = await self._message(self._calls, call, peer, reading, size)
            if message is None:
                raise asyncio.CancelledError("the caller has gone")
            if call.place is not None:
                # A pick that waits counts in the queue's own limit meanwhile.
                GIVE_ROOM.set(partial(self._calls.leave, call.place))
            return message

        try:
            if turn := self._enter(call, peer, is_urgent=is_urgent):
                await turn
            yield read
        except (NoPlaceError, LateError, BusyError) as error:
            text, limit = TOO_MANY % self._calls.limit, "limits.max-in-flight-bytes"
            refused = self._refused(error, text, limit=limit)
            code = refused.refusal.code.name
            self._counts.answered(method, code, call.lasted, reason_of(error))
            raise refused from None
        finally:
            if call.place is not None:
                self._calls.leave(call.place)

    async def messages(self, call: Call) -> AsyncGenerator[tuple[bytes, Callable[[], None]], None]:
        """Yield each message of a stream, with a function to call after it was answered.

        Raises RefusedError.
        """
        while True:
            waiting = _Call()
            try:
                message = await self._message(
                    self._streams, waiting, call.peer, call.read, call.next_bytes
                )
            except BaseException as error:
                if waiting.place is not None:
                    self._streams.leave(waiting.place)
                if isinstance(error, NoPlaceError | LateError):
                    raise self._refused(error, TOO_MANY_STREAMS % self._streams.limit) from None
                raise
            assert waiting.place is not None
            done = partial(self._streams.leave, waiting.place)
            if message is None:
                done()
                return
            try:
                if turn := self._enter(waiting, call.peer, is_patient=True):
                    await turn
            except BaseException:
                done()
                raise
            yield message, done

    def _enter(
        self, call: "_Call", peer: str, *, is_urgent: bool = False, is_patient: bool = False
    ) -> Awaitable[None] | None:
        """Return what to await before the work on a call begins; None if it may begin now.

        Raises BusyError, as may the wait.
        """
        admission = self._admission
        if admission is None:
            return None
        turn = admission.enter(peer, call.wake, is_urgent=is_urgent, is_patient=is_patient)
        # Most calls wait for nothing, and are spared a coroutine.
        return None if turn.begins else self._begun(admission, turn, call)

    @staticmethod
    async def _begun(admission: Admission, turn: Turn, call: "_Call") -> None:
        try:
            await call.turn()
        finally:
            admission.leave(turn)

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
        self, room: InFlight, call: "_Call", peer: str, reading: Reading, size: int | None
    ) -> bytes | None:
        """Return the next message, with a place in `room`; None if no more comes.

        Raises NoPlaceError and LateError.
        """
        call.place = place = room.enter(peer, call.wake, size)
        if place.state is CallState.WAITING:
            self._look_later()
            await call.turn()
            room.reads(place)
        call.task = asyncio.current_task()
        try:
            message = await reading()
        except asyncio.CancelledError:
            if call.late is not None and call.task is not None and not call.task.uncancel():
                raise call.late from None
            raise
        if message is not None:
            room.has_read(place, len(message))
        return message

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        for room in (self._calls, self._streams):
            room.end_late()
        if self._calls.waiting or self._streams.waiting:
            self._look_later()


class _Call:
    """Waits for its turn, then for its message."""

    __slots__ = ("_begun", "_turn", "late", "place", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        """The task that waits, once it does."""
        self.place: Reservation | None = None
        self.late: Exception | None = None
        """The error for which the reading task was cancelled."""
        self._turn: asyncio.Future[None] | None = None
        self._begun = time.perf_counter()

    @property
    def lasted(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self._begun

    async def turn(self) -> None:
        """Wait until the call is woken. Raises the error with which it is."""
        self.task = asyncio.current_task()
        self._turn = asyncio.get_running_loop().create_future()
        await self._turn

    def wake(self, error: Exception | None) -> None:
        """Let the call go on, or end it with an error."""
        turn = self._turn
        if turn is None or turn.done():
            if error is not None and self.task is not None:
                self.late = error
                self.task.cancel()
        elif error is None:
            turn.set_result(None)
        else:
            turn.set_exception(error)
