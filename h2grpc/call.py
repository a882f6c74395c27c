"""One call: its messages in, its answer out; one file, as both directions share the stream's state."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from warmpath.h2grpc.framing import Deframer, TooLongError, UnknownEncodingError, framed
from warmpath.h2grpc.http2.library import STREAM_WINDOW
from warmpath.h2grpc.http2.session import Session
from warmpath.h2grpc.metadata import BEGINNING, Request, trailers_of
from warmpath.h2grpc.method import Explain, Metadata, Method, Refusal, RefusedError

log = logging.getLogger(__name__)

READ_WINDOW = 256 << 10
"""Bytes of a long message that may be under way while its call waits for it."""


class Link(Protocol):
    """The connection of a call."""

    session: Session
    loop: asyncio.AbstractEventLoop
    peer: str
    """The client's address as gRPC writes it, such as ipv4:10.0.0.1:50000."""
    address: str
    """The part of `peer` that all connections of that machine have in common."""

    @property
    def names(self) -> Sequence[str]:
        """The names in the client's certificate."""

    def flush(self) -> None:
        """Give the session's bytes to the socket, unless the socket's buffer is full."""

    def if_gone(self, stream: int, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read what was sent on a stream."""

    def works(self, *, is_busy: bool) -> None:
        """Note that methods run (`is_busy`), or that none does any more or a call was answered."""


class Call:
    """One call, on the event loop of its connection. Once it has ended, `put` raises CancelledError."""

    # Most calls never change most of these defaults, so `__init__` does not set them for each call.
    _unconsumed = 0
    """Bytes that count against the stream's window."""
    _window = STREAM_WINDOW
    _no_more = False
    """Whether the client has sent its last message."""
    _arrived: asyncio.Future[None] | None = None
    """The future that `read` awaits: the next bytes."""
    _sent: asyncio.Future[None] | None = None
    """The future that `drain` awaits: all data sent."""
    _put: list[bytes] | None = None
    """The messages, in their frames, that `put` has left to be sent."""
    _has_begun = False
    """Whether the answer's headers are with the session."""
    _if_gone: Callable[[], None] | None = None
    """What to call if the client does not read the answer, which is not sent yet."""
    held_since = 0.0
    """The loop's time at which the first of the held bytes arrived."""
    _deadline = math.inf
    """The loop's time at which the caller's deadline passes."""
    _expiry: asyncio.TimerHandle | None = None
    was_cancelled = False
    """Whether the caller has gone, or its deadline has passed, before the answer."""
    is_closed = False
    """Whether the stream has ended on both sides."""
    is_ended = False
    """Whether the answer is complete, or nobody waits for it."""
    on_came: "Callable[[Call], None] | None" = None
    """Called once, when the first message has come or the call has ended without one."""
    task: asyncio.Task[None] | None = None
    """The task of its method, once that runs."""

    def __init__(
        self,
        link: Link,
        stream: int,
        request: Request,
        method: Method,
        *,
        most_bytes: int,
        explain: Explain,
    ) -> None:
        # To ask for the running loop is a system call (getpid) in Python 3.11.
        self._loop = link.loop
        self._link = link
        self.peer = link.peer
        self.address = link.address
        """The part of `peer` that all connections of that machine have in common."""
        self._stream = stream
        self.method = request.method
        self.metadata = request.metadata
        self.runs = method
        self._explain = explain
        self._deframer = Deframer(most_bytes, request.encoding)
        if request.seconds is not None:
            self._deadline = self._loop.time() + request.seconds
            self._expiry = self._loop.call_later(request.seconds, self._expire)

    # The caller.

    @property
    def names(self) -> Sequence[str]:
        """The names in the client's certificate."""
        return self._link.names

    @property
    def seconds_left(self) -> float:
        """The seconds until the caller's deadline; infinity without one."""
        return max(0.0, self._deadline - self._loop.time())

    # Events of the connection.

    def received(self, chunks: Sequence[memoryview]) -> None:
        """Take data of the stream; data that come after the answer are ignored."""
        if self.is_ended:
            return
        if not self._deframer.held:
            self.held_since = self._loop.time()
        self._unconsumed += self._deframer.put(chunks)
        if self._arrived is not None:
            self._wake(self._arrived)

    def no_more(self) -> None:
        """Note that the client sends no more data."""
        self._no_more = True
        if self._arrived is not None:
            self._wake(self._arrived)

    def came(self) -> None:
        """Call `on_came`, only the first time: the first message has come, or nobody waits for it."""
        if self.on_came is not None:
            on_came, self.on_came = self.on_came, None
            on_came(self)

    def drained(self) -> None:
        """Note that all of the answer's data are sent."""
        if self._sent is not None:
            self._wake(self._sent)

    def closed(self) -> None:
        """Note that the stream is closed, or was reset; cancel the method if it still runs."""
        self.is_closed = True
        if not self.is_ended:
            self.was_cancelled = True
            self._conclude()
            if self.task is not None:
                self.task.cancel()
        if self._arrived is not None:
            self._wake(self._arrived)
        if self._sent is not None:
            self._wake(self._sent)

    # Ending a call.

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, text: str = "") -> None:
        """End the call with a status, after the messages that were put. An ended call stays as it is."""
        self._end(code, text, ())

    def answer(self, message: bytes) -> None:
        """End the call with the only answer to its only message, which `whole` has returned."""
        # Its client may have to send the end of its request, for which it needs a window.
        self._consume(self._unconsumed)
        self._put = [framed(message)]
        self._end(grpc.StatusCode.OK, "", ())
        if self._if_gone is not None:
            self._link.if_gone(self._stream, self._if_gone)

    def refuse(self, refusal: Refusal) -> None:
        """End the call with a refusal; its method may still run."""
        self._end(refusal.code, refusal.text, refusal.metadata)

    def give_up(self, refusal: Refusal) -> None:
        """End the call with a refusal, and cancel its method."""
        self.refuse(refusal)
        if self.task is not None:
            self.task.cancel()

    def _end(self, code: grpc.StatusCode, text: str, metadata: Metadata) -> None:
        if self.is_ended or self.is_closed:
            return
        try:
            trailers = trailers_of(code, text, metadata)
        except ValueError as error:
            log.error("%s: %s", self.method, error)  # noqa: TRY400
            trailers = trailers_of(grpc.StatusCode.INTERNAL, str(error))
        session, stream, put = self._link.session, self._stream, b"".join(self._put or ())
        if self._has_begun:
            if put:
                session.write(stream, put)
            session.finish(stream, trailers)
        elif put:
            session.answer_whole(stream, BEGINNING, put, trailers)
        else:
            session.answer_at_once(stream, [*BEGINNING, *trailers])
        self._put, self._has_begun = None, True
        self._conclude()
        self._link.flush()

    @property
    def window(self) -> int:
        """The bytes of an answer that the client takes now."""
        return self._link.session.window_of(self._stream)

    @property
    def held(self) -> int:
        """The bytes that have arrived and that no method has read."""
        return self._deframer.held

    @property
    def is_incomplete(self) -> bool:
        """Whether the next message has begun to arrive, and the client has to send more of it."""
        try:
            return not self._no_more and self._deframer.missing > 0
        except TooLongError:
            return True

    def _conclude(self) -> None:
        self.is_ended = True
        if self.on_came is not None:
            self.came()
        if self._deframer.held:
            self._deframer.drop()
        if self._arrived is not None:
            self._wake(self._arrived)
        if self._expiry is not None:
            self._expiry.cancel()

    def _expire(self) -> None:
        self.was_cancelled = True
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self.task is not None:
            self.task.cancel()

    # Messages.

    @property
    def waits_for_rest(self) -> bool:
        """Whether the rest of the next message fits into the stream's window, and so comes unasked."""
        try:
            missing = self._deframer.missing
        except TooLongError:
            return False
        return not self._no_more and 0 < missing <= STREAM_WINDOW - self._deframer.held

    def whole(self) -> bytes | None:
        """Return the next message and keep it; None if it is compressed or not all that came."""
        return self._deframer.whole()

    def take(self) -> bytes | None:
        """Return the next message; None if `read` would have to wait for it or decompress it."""
        deframer = self._deframer
        message = deframer.take_whole()
        if message is None:
            size = deframer.next_bytes
            if size is None or deframer.is_incomplete(size):
                return None
            message, _ = deframer.take()
        self._consume(max(0, self._unconsumed - deframer.held))
        return message

    async def read(self) -> bytes | None:
        """Return the next message; None after the last. Raises RefusedError if one cannot be read."""
        deframer = self._deframer
        try:
            while missing := deframer.missing:
                if self._no_more:
                    deframer.check_end()
                    return None
                await self._more(missing)
            message, is_compressed = deframer.take()
            self._consume(max(0, self._unconsumed - deframer.held))
            return await self._decompressed(message) if is_compressed else message
        except TooLongError as error:
            code, reason, text = grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_LARGE", str(error)
        except UnknownEncodingError as error:
            code, reason, text = grpc.StatusCode.UNIMPLEMENTED, "UNKNOWN_ENCODING", str(error)
        except ValueError as error:
            code, reason, text = grpc.StatusCode.INTERNAL, "BAD_CALL", str(error)
        raise RefusedError(self._explain(code, text, reason))

    async def _more(self, missing: int) -> None:
        """Send what is ready, and wait for further bytes of a message that lacks `missing` bytes."""
        self._check_open()
        self._consume(self._unconsumed)
        if missing > self._window:
            self._window = READ_WINDOW
            self._link.session.widen(self._stream, READ_WINDOW)
        self._give()
        self._link.flush()
        self._arrived = self._loop.create_future()
        try:
            await self._arrived
        finally:
            self._arrived = None

    async def _decompressed(self, message: bytes) -> bytes:
        parts = []
        for part in self._deframer.decompress(message):
            parts.append(part)
            await asyncio.sleep(0)
        return b"".join(parts)

    @property
    def next_bytes(self) -> int | None:
        """The length of the next message; None if its prefix has not come, or if it is compressed."""
        return self._deframer.next_bytes

    def _consume(self, size: int) -> None:
        # Nothing more comes after the last message, so its window need not be open.
        if size and not self._no_more and not self.is_closed:
            self._unconsumed -= size
            self._link.session.consume(self._stream, size)

    async def write(self, message: bytes) -> None:
        """Put a message, and `drain`: return once the client's window has taken all messages."""
        self.put(message)
        await self.drain()

    def put(self, message: bytes) -> int:
        """Put a message, which goes out once the method waits for the client, or ends the call.

        Return the bytes of the answer that are not sent.
        """
        self._check_open()
        if self._put is None:
            self._put = []
        self._put.append(framed(message))
        return sum(map(len, self._put)) + self._link.session.unsent_of(self._stream)

    def _give(self) -> None:
        """Give what was put to the session."""
        if self._put:
            if not self._has_begun:
                self._link.session.answer(self._stream, BEGINNING)
                self._has_begun = True
            self._link.session.write(self._stream, b"".join(self._put))
            self._put.clear()

    async def drain(self) -> None:
        """Send all messages that were put; return once the client's window has taken them."""
        self._give()
        self._link.flush()
        if self._link.session.unsent_of(self._stream):
            self._sent = self._loop.create_future()
            try:
                await self._sent
            finally:
                self._sent = None
            if self.is_closed:
                raise asyncio.CancelledError("the call has ended")

    def _check_open(self) -> None:
        if self.is_ended or self.is_closed:
            raise asyncio.CancelledError("the call has ended")

    @staticmethod
    def _wake(waiting: asyncio.Future[None]) -> None:
        if not waiting.done():
            waiting.set_result(None)

    def if_gone(self, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read what is sent.

        The client has reset the stream, now or after the whole answer was sent; or its connection is
        lost, and it has answered no ping that was sent after those messages.
        """
        if self.is_closed:
            call()
        elif self._has_begun:
            self._link.if_gone(self._stream, call)
        else:
            self._if_gone = call
