"""The connection of one client: an asyncio protocol around a `Session`, with the calls on it."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import grpc

from router.error_info import Reason, details
from router.transport.call import Call
from router.transport.handlers import find, run
from router.transport.http2 import library as lib
from router.transport.http2.ended import EndedError
from router.transport.http2.header_block import Headers
from router.transport.http2.journal import READ, RECEIVE_BYTES, Journal
from router.transport.http2.limits import Http2Limits
from router.transport.http2.session import Session
from router.transport.metadata import (
    BEGINNING,
    BadHeaderError,
    NoCallError,
    read_request,
    trailers_of,
)
from router.transport.peer import Properties, peer_name, properties_of
from router.transport.server import AtOnceHandler, Gate, Refusal

log = logging.getLogger(__name__)

WRITE_BYTES = 1 << 20
"""Bytes in the socket's buffer above which no more are taken out of the session."""
TURN_SECONDS = 0.005
"""Longest time for which a connection handles bytes before other connections have their turn."""
CANCEL_SECONDS = 1.0
"""Longest wait for handlers that are cancelled when the server ends."""


class Connection(asyncio.Protocol):
    """Answers the calls of one client. It calls `closed` with itself once its socket is closed.

    It calls `arrived` with the number of bytes that its socket has received, before it takes them.
    """

    def __init__(
        self,
        handlers: Sequence[grpc.GenericRpcHandler],
        limits: Http2Limits,
        *,
        gate: Gate | None = None,
        opened: Callable[["Connection"], None],
        closed: Callable[["Connection"], None],
        arrived: Callable[[int], None],
        clock: Callable[[], float],
        journal: Journal | None = None,
    ) -> None:
        self._handlers = handlers
        self._found: dict[str, Any] = {}
        """Cached handlers by method: the choice of a handler must not depend on a call's metadata."""
        self._limits = limits
        self._gate = gate
        self._opened = opened
        self._closed = closed
        self._arrived = arrived
        self._clock = clock
        self._journal = journal or Journal(limits)
        self._calls: dict[int, Call] = {}
        self._fresh: list[Call] = []
        """Calls without a task of which bytes have come in this step."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_in_session = False
        """Whether libnghttp2 handles received bytes; meanwhile nobody may ask it for bytes to send."""
        self._rest = b""
        """Bytes of the client that wait for the next turn."""
        self._paused_since: float | None = None
        self._has_received = True
        """Whether bytes arrived since the last look."""
        self._silent_since = clock()
        self._idle_since = self._made = clock()

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the session."""
        self._socket = cast("asyncio.Transport", transport)
        self._opened(self)
        self._socket.set_write_buffer_limits(high=WRITE_BYTES)
        self.session = Session(self, self._limits, self._clock, self._journal)
        self.peer = peer_name(transport.get_extra_info("peername"))
        self._properties: Properties | None = None
        self.flush()

    @property
    def auth_context(self) -> Properties:
        """The properties of the client's certificate."""
        if self._properties is None:
            self._properties = properties_of(self._socket.get_extra_info("ssl_object"))
        return self._properties

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._socket.is_closing():
            return
        self._has_received = True
        self._arrived(len(data))
        if self._rest:
            self._rest += data
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Give bytes to the session, for no longer than a turn: other connections wait."""
        until = time.perf_counter() + TURN_SECONDS
        self._is_in_session = True
        at = 0
        try:
            while at < len(data):
                self.session.receive(data[at : at + RECEIVE_BYTES])
                at += RECEIVE_BYTES
                if self._fresh:
                    self._answer_at_once()
                if time.perf_counter() > until:
                    break
        except EndedError as error:
            self._break(error)
            return
        finally:
            self._is_in_session = False
        self._rest = data[at:]
        if self.session.wants != READ:
            self.flush()
        if self._rest and not self._socket.is_closing():
            self._socket.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        rest, self._rest = self._rest, b""
        if self._socket.is_closing():
            return
        self._socket.resume_reading()
        if rest:
            self._take(rest)

    def pause_writing(self) -> None:
        """Leave bytes in the session: the socket's buffer is full."""
        self._paused_since = self._clock()

    def resume_writing(self) -> None:
        """Go on sending."""
        self._paused_since = None
        self.flush()

    def connection_lost(self, _: Exception | None) -> None:
        """End all calls."""
        self._end_calls()
        self.session.close()
        self._closed(self)

    def _end_calls(self) -> None:
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.closed()

    def flush(self) -> None:
        """Send what can be sent."""
        if self._is_in_session or self._paused_since is not None or self._socket.is_closing():
            return
        self._is_in_session = True
        try:
            data = self.session.to_send()
        except EndedError as error:
            self._break(error)
            return
        finally:
            self._is_in_session = False
        if data:
            self._socket.write(data)
        if self.session.drained:
            drained, self.session.drained = self.session.drained, []
            for stream in drained:
                if stream in self._calls:
                    self._calls[stream].drained()
        if not self.session.wants:
            # Either side has ended the connection, or the client broke the protocol.
            self._socket.close()

    def _break(self, error: EndedError) -> None:
        log.info("%s: the connection ends: %s", self.peer, error)
        if self._paused_since is None:
            self._socket.write(self.session.goaway_of(error))
            self._socket.close()
        else:
            self._socket.abort()
        self._end_calls()

    # Events of the session.

    def requested(self, stream: int, block: bytes, *, is_too_long: bool) -> None:
        """Begin a call."""
        if is_too_long:
            text = f"the headers have more than {self._limits.header_bytes} bytes"
            self._refuse_because(stream, grpc.StatusCode.RESOURCE_EXHAUSTED, text, Reason.TOO_LARGE)
            return
        try:
            request = read_request(block)
        except NoCallError as error:
            status = str(error.status).encode()
            self.session.answer_at_once(stream, [(b":status", status)])
            return
        except BadHeaderError as error:
            self._refuse_because(stream, grpc.StatusCode.INTERNAL, str(error), Reason.BAD_CALL)
            return
        if self._gate is not None and (refusal := self._gate(request.method, self.peer)):
            self._refuse(stream, refusal)
            return
        handler = self._found.get(request.method)
        if handler is None:
            handler = find(self._handlers, request.method, request.metadata)
            if handler is not None:
                self._found[request.method] = handler
        if handler is None:
            code, text = grpc.StatusCode.UNIMPLEMENTED, "Method not found!"
            self._refuse_because(stream, code, text, Reason.UNKNOWN_METHOD)
            return
        if self.session.unsent > self._limits.unsent_bytes:
            code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, "the client does not read its answers"
            self._refuse_because(stream, code, text, Reason.ANSWERS_UNREAD)
            return
        call = Call(self, stream, request, handler, self._limits.message_bytes)
        self._calls[stream] = call
        if not isinstance(handler, AtOnceHandler):
            self._run(call)

    def _answer_at_once(self) -> None:
        """Answer the fresh calls whose message is there; run those that must wait for anything."""
        fresh, self._fresh = self._fresh, []
        for call in fresh:
            if call.task is not None or call.done():
                continue
            message = call.whole()
            if message is None:
                if not call.waits_for_rest:
                    self._run(call)
            elif (answer := call.handler.at_once(message, call)) is None:
                self._run(call)
            else:
                call.finish(answer)

    def _run(self, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(run(call))
        call.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, stream: int, refusal: Refusal) -> None:
        self.session.answer_at_once(stream, _headers_of(refusal))

    def _refuse_because(
        self, stream: int, code: grpc.StatusCode, text: str, reason: "Reason.ValueType"
    ) -> None:
        self._refuse(stream, Refusal.because(code, text, reason))

    def received(self, stream: int, chunks: Sequence[memoryview]) -> None:
        """Take data of a call."""
        call = self._calls.get(stream)
        if call is not None:
            call.received(chunks)
            if call.task is None:
                self._fresh.append(call)

    def ended(self, stream: int) -> None:
        """Note that a call has all its messages."""
        call = self._calls.get(stream)
        if call is not None:
            call.no_more()
            if call.task is None:
                self._fresh.append(call)

    def closed(self, stream: int) -> None:
        """End a call."""
        call = self._calls.pop(stream, None)
        if call is not None:
            call.closed()
        if not self._calls:
            self._idle_since = self._clock()

    # Calls of the server.

    @property
    def held(self) -> int:
        """The bytes that have arrived and are not read."""
        return len(self._rest) + sum(call.held for call in self._calls.values())

    def holding(self) -> list[Call]:
        """Return the calls that hold bytes."""
        return [call for call in self._calls.values() if call.held]

    @property
    def calls(self) -> int:
        """The number of calls in progress."""
        return len(self._calls)

    def look(self, now: float) -> None:
        """End the connection if the client has gone or breaks a limit of time; ping a silent one."""
        limits = self._limits
        if self._has_received:
            self._has_received = False
            self._silent_since = now
        if problem := self._problem(now):
            log.info("%s: the connection is cut off: %s", self.peer, problem)
            self._socket.abort()
            return
        for stream, call in self._calls.items():
            if call.done():
                unread_since = self.session.unread_since(stream, now)
                if now - unread_since > limits.stall_seconds:
                    self.session.reset(stream, lib.CANCEL)
        self.session.end_half_open(now - limits.handshake_seconds)
        if not self._calls and now - self._idle_since > limits.idle_seconds:
            self.terminate()
        elif now - self._silent_since >= limits.ping_seconds and not self.session.pings:
            self.session.ping()
        self.flush()

    def _problem(self, now: float) -> str:
        session, limits = self.session, self._limits
        begun = session.headers_since
        if not session.has_begun and now - self._made > limits.handshake_seconds:
            return f"no HTTP/2 preface within {limits.handshake_seconds:g} s"
        if begun is not None and now - begun > limits.handshake_seconds:
            return f"a call's headers did not end within {limits.handshake_seconds:g} s"
        if self._paused_since is not None and now - self._paused_since > limits.stall_seconds:
            return f"nothing was read for {limits.stall_seconds:g} s"
        if session.pings and now - self._silent_since >= 2 * limits.ping_seconds:
            return f"no answer to a ping within {limits.ping_seconds:g} s"
        return ""

    def terminate(self) -> None:
        """Take no more calls, and close the connection once those in progress have ended."""
        if self._calls:
            self.session.refuse_new()
        else:
            self.session.terminate(lib.NO_ERROR)
        self.flush()

    async def cut_off(self) -> None:
        """Cancel the calls in progress, and close the connection."""
        code, text = grpc.StatusCode.UNAVAILABLE, "the server ends"
        trailing = details(code, text, Reason.ENDING, retry_seconds=0.0)
        for call in list(self._calls.values()):
            call.set_trailing_metadata(trailing)
            call.end(code, text)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CANCEL_SECONDS)
        if self._socket.is_closing():
            return
        self.session.terminate(lib.NO_ERROR)
        self.flush()
        self._socket.close()

    def abort(self) -> None:
        """Close the socket without waiting for the client to read what was sent."""
        self._socket.abort()

    def __repr__(self) -> str:
        return f"<Connection {self.peer}: {len(self._calls)} calls>"


@lru_cache(64)
def _headers_of(refusal: Refusal) -> Headers:
    trailers = trailers_of(refusal.code, refusal.text, refusal.metadata)
    return (*BEGINNING, *trailers)
