"""The calls of one connection: their beginnings, bytes and ends, as its session finds them."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import grpc

from warmpath.h2grpc.call import Call, Link
from warmpath.h2grpc.http2 import library as lib
from warmpath.h2grpc.http2.library import Headers
from warmpath.h2grpc.metadata import (
    BEGINNING,
    BadHeaderError,
    NoCallError,
    read_request,
    trailers_of,
)
from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.h2grpc.receipts import Receipts
from warmpath.h2grpc.shared import Shared

log = logging.getLogger(__name__)

CANCEL_SECONDS = 1.0
"""Longest wait for methods that are cancelled when the server ends."""


class Calls:
    """The calls of a connection by stream: the `Events` of its session."""

    def __init__(self, link: Link, shared: Shared) -> None:
        self._link = link
        self._methods = shared.methods
        self._limits = shared.limits
        self._announced = shared.announced
        self._explain = shared.explain
        self._clock = shared.clock
        self._of: dict[int, Call] = {}
        self.fresh: list[Call] = []
        """Calls without a task that have received data or their end since the last `answer_at_once`."""
        self._receipts = Receipts(shared.limits.streams)
        self.tasks: set[asyncio.Task[None]] = set()
        self.idle_since = self._clock()
        """The time since which the connection has had no call, if it has none."""

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._of.values())

    def requested(self, stream: int, block: bytes, *, is_too_long: bool) -> None:
        """Begin the call that a block of headers asks for, or answer with a refusal."""
        if is_too_long:
            text = f"the headers have more than {self._limits.header_bytes} bytes"
            self._refuse_because(stream, grpc.StatusCode.RESOURCE_EXHAUSTED, text, "TOO_LARGE")
            return
        try:
            request = read_request(block)
        except NoCallError as error:
            status = str(error.status).encode()
            self._link.session.answer_at_once(stream, [(b":status", status)])
            return
        except BadHeaderError as error:
            self._refuse_because(stream, grpc.StatusCode.INTERNAL, str(error), "BAD_CALL")
            return
        method = self._methods.get(request.method)
        if method is None:
            code, text = grpc.StatusCode.UNIMPLEMENTED, "Method not found!"
            self._refuse_because(stream, code, text, "UNKNOWN_METHOD")
            return
        if self._link.session.unsent > self._limits.unsent_bytes:
            code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, "the client does not read its answers"
            self._refuse_because(stream, code, text, "ANSWERS_UNREAD")
            return
        call = Call(
            self._link,
            stream,
            request,
            method,
            most_bytes=self._limits.message_bytes,
            explain=self._explain,
        )
        self._of[stream] = call
        if method.refusal is not None and (refusal := method.refusal(call)) is not None:
            call.give_up(refusal)
            return
        self._announced.add(call)

    def answer_at_once(self) -> None:
        """Answer the fresh calls whose first message is there; run the methods of those that must wait.

        A message that does not fit into a stream's window comes only if it is asked for, so its call
        runs before that.
        """
        fresh, self.fresh = self.fresh, []
        for call in fresh:
            if call.on_came is None:
                # It has begun, or will do so.
                continue
            message = call.whole()
            if message is None:
                if not call.waits_for_rest:
                    self._run(call)
                continue
            call.came()
            at_once = call.runs.at_once
            try:
                answer = at_once(message, call) if at_once is not None else None
                if answer is None:
                    self._run(call)
                    continue
                call.answer(answer)
            except Exception as error:  # noqa: BLE001  the call's, not the connection's
                call.take()
                _fail(call, error)
            if not self.tasks:
                self._link.works(is_busy=False)

    def _run(self, call: Call) -> None:
        call.came()
        self._announced.beginnings.add(self._link.loop, call.address, partial(self._begin, call))

    def _begin(self, call: Call) -> None:
        if call.is_ended:
            return
        task = self._link.loop.create_task(_run(call))
        call.task = task
        if not self.tasks:
            self._link.works(is_busy=True)
        self.tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not self.tasks:
            self._link.works(is_busy=False)

    def _refuse_because(self, stream: int, code: grpc.StatusCode, text: str, reason: str) -> None:
        refusal = self._explain(code, text, reason)
        self._link.session.answer_at_once(stream, headers_of(refusal))

    def refused(self, method: str, count: int) -> None:
        """Count calls that were refused, since the gate had no room for them."""
        if (gate := self._announced.gate) is not None:
            gate.refused(method, count)

    def received(self, stream: int, chunks: Sequence[memoryview]) -> None:
        """Take data of a call."""
        call = self._of.get(stream)
        if call is not None:
            call.received(chunks)
            if call.task is None:
                self.fresh.append(call)

    def ended(self, stream: int) -> None:
        """Note that the client sends no more data of a call."""
        call = self._of.get(stream)
        if call is not None:
            call.no_more()
            if call.task is None:
                self.fresh.append(call)

    def closed(self, stream: int, *, is_whole: bool) -> None:
        """End the call of a closed stream; `is_whole`: the stream closed without an error."""
        call = self._of.pop(stream, None)
        if call is not None:
            call.closed()
            if not is_whole:
                self._receipts.reset(stream)
        if not self._of:
            self.idle_since = self._clock()

    def reset_late(self, stream: int) -> None:
        """Note that the client has given up a call that was answered."""
        self._receipts.reset(stream)

    def ponged(self) -> None:
        """Note that the client has read what was sent before the last ping."""
        self._receipts.answered()
        self._ask()

    def _ask(self) -> None:
        """Ping the client if it has to show that it reads answers."""
        session = self._link.session
        if not session.pings and self._receipts.ask():
            session.ping()

    # Calls of the connection.

    def if_gone(self, stream: int, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read what was sent on a stream."""
        self._receipts.sent(stream, call)
        self._ask()

    def drained(self, streams: Sequence[int]) -> None:
        """Note that all data of the answers on `streams` are sent."""
        for stream in streams:
            if stream in self._of:
                self._of[stream].drained()

    def look(self, now: float) -> None:
        """Reset streams with a whole answer of which the client read nothing for `stall_seconds`."""
        session = self._link.session
        for stream, call in self._of.items():
            if (
                call.is_ended
                and now - session.unread_since(stream, now) > self._limits.stall_seconds
            ):
                session.reset(stream, lib.CANCEL)

    def end(self) -> None:
        """End all calls: the connection is lost."""
        calls = list(self._of.values())
        self._of.clear()
        for call in calls:
            call.closed()
        self._receipts.lost()

    async def cut_off(self) -> None:
        """Answer all calls with an error, and cancel their methods."""
        code, text = grpc.StatusCode.UNAVAILABLE, "the server ends"
        refusal = self._explain(code, text, "ENDING", retry_seconds=0.0)
        for call in list(self._of.values()):
            call.refuse(refusal)
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=CANCEL_SECONDS)


@lru_cache(64)
def headers_of(refusal: Refusal) -> Headers:
    """Return the headers of the answer that ends a call with a refusal."""
    trailers = trailers_of(refusal.code, refusal.text, refusal.metadata)
    return (*BEGINNING, *trailers)


async def _run(call: Call) -> None:
    """Run a call's method to its end, and end the call with its status; raises nothing."""
    try:
        await call.runs.run(call)
        call.end()
    except asyncio.CancelledError:
        call.end(grpc.StatusCode.CANCELLED, "the call was cancelled")
    except Exception as error:  # noqa: BLE001  the call's
        _fail(call, error)


def _fail(call: Call, error: Exception) -> None:
    """End a call with an error."""
    if isinstance(error, RefusedError):
        call.refuse(error.refusal)
        return
    if not call.was_cancelled:
        log.error("%s: unexpected", call.method, exc_info=error)
    # The same text as that of gRPC's own server.
    call.end(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
