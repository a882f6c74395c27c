"""One call: its messages in, its answer out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio

from warmpath.h2grpc.context import CallContext, Link
from warmpath.h2grpc.framing import Deframer, TooLongError, UnknownEncodingError, framed
from warmpath.h2grpc.http2.library import STREAM_WINDOW, Headers
from warmpath.h2grpc.metadata import BEGINNING, Request, trailers_of, written
from warmpath.proto.errors import Reason, details

log = logging.getLogger(__name__)

READ_WINDOW = 256 << 10
"""Bytes of a long message that may be under way while its call waits for it."""


class Call(CallContext):
    """The context of one call, on the event loop of its connection."""

    # Most calls never change most of these defaults, so `__init__` does not set them for each call.
    _unconsumed = 0
    """Bytes that count against the stream's window."""
    _window = STREAM_WINDOW
    _no_more = False
    """Whether the client has sent its last message."""
    _arrived: asyncio.Future[None] | None = None
    """The future that `read` awaits: the next bytes."""
    _sent: asyncio.Future[None] | None = None
    """The future that `write` awaits: all data sent."""
    _put: list[bytes] | None = None
    """The messages, in their frames, that `put` has left to be sent."""
    _initial: Headers | None = ()
    """The metadata with which the answer begins, as headers; None once that is sent."""
    _callbacks: Sequence[Callable[[Any], None]] = ()
    held_since = 0.0
    """The loop's time at which the first of the held bytes arrived."""
    _expiry: asyncio.TimerHandle | None = None
    _was_cancelled = False
    is_closed = False
    """Whether the stream has ended on both sides."""
    _is_ended = False
    """Whether the answer is complete, or nobody waits for it."""
    serialize: Callable[[Any], bytes] = bytes
    deserialize: Callable[[bytes], Any] = bytes
    on_came: "Callable[[Call], None] | None" = None
    """Is told once, when the first message has come, or the call has ended without."""
    task: asyncio.Task[None] | None = None
    """The task of its handler, once that runs."""

    def __init__(
        self, link: Link, stream: int, request: Request, handler: Any, most_bytes: int
    ) -> None:
        # To ask for the running loop is a system call (getpid) in Python 3.11.
        self._loop = link.loop
        self._link = link
        self._stream = stream
        self._request = request
        self.handler = handler
        self._deframer = Deframer(most_bytes, request.encoding)
        if request.seconds is not None:
            self._deadline = self._loop.time() + request.seconds
            self._expiry = self._loop.call_later(request.seconds, self._expire)

    # Events of the connection.

    def received(self, chunks: Sequence[memoryview]) -> None:
        """Take data of the stream; data that come after the answer are ignored."""
        if self._is_ended:
            return
        if not self._deframer.held:
            self.held_since = self._loop.time()
        self._unconsumed += self._deframer.put(chunks)
        if self._arrived is not None:
            self._wake(self._arrived)

    def no_more(self) -> None:
        """Note that no more data come."""
        self._no_more = True
        if self._arrived is not None:
            self._wake(self._arrived)

    def came(self) -> None:
        """Note that the first message has come, or that nobody waits for it."""
        if self.on_came is not None:
            on_came, self.on_came = self.on_came, None
            on_came(self)

    def drained(self) -> None:
        """Note that all of the answer's data are sent."""
        if self._sent is not None:
            self._wake(self._sent)

    def closed(self) -> None:
        """Note that the stream is closed, or was reset."""
        self.came()
        self.is_closed = True
        if not self._is_ended:
            self._was_cancelled = True
            self._conclude()
            if self.task is not None:
                self.task.cancel()
        if self._arrived is not None:
            self._wake(self._arrived)
        if self._sent is not None:
            self._wake(self._sent)

    # Ending a call.

    def finish(self, response: bytes) -> None:
        """End the call with its only response."""
        if self._is_ended or self.is_closed:
            return
        self._give()
        session, trailers = self._link.session, self._trailers(None, "")
        if self._initial is None:
            session.write(self._stream, framed(response))
            session.finish(self._stream, trailers)
        else:
            session.answer_whole(self._stream, self._beginning(), framed(response), trailers)
            self._initial = None
        self._conclude()
        self._link.flush()

    def end(self, code: grpc.StatusCode | None = None, details: str = "") -> None:
        """End the call with a status, by default the one that the handler has set, or OK."""
        if self._is_ended or self.is_closed:
            return
        self._give()
        session, trailers = self._link.session, self._trailers(code, details)
        if self._initial is None:
            session.finish(self._stream, trailers)
        else:
            session.answer_at_once(self._stream, [*self._beginning(), *trailers])
            self._initial = None
        self._conclude()
        self._link.flush()

    def _trailers(self, code: grpc.StatusCode | None, details: str) -> Headers:
        code = code or self._code or grpc.StatusCode.OK
        self._code, self._details = code, details or self._details
        try:
            return trailers_of(code, self._details, self._trailing)
        except ValueError as error:
            log.error("%s: %s", self.method, error)  # noqa: TRY400
            return trailers_of(grpc.StatusCode.INTERNAL, str(error))

    @property
    def held(self) -> int:
        """The bytes that have arrived and are not read."""
        return self._deframer.held

    @property
    def is_incomplete(self) -> bool:
        """Whether the next message has begun to arrive, and the client has to send more of it."""
        try:
            return not self._no_more and self._deframer.missing > 0
        except TooLongError:
            return True

    def give_up(self, code: grpc.StatusCode, text: str, metadata: Any) -> None:
        """End the call with an error, whatever its handler waits for."""
        self.set_trailing_metadata(metadata)
        self.end(code, text)
        if self.task is not None:
            self.task.cancel()

    def _conclude(self) -> None:
        self._is_ended = True
        self.came()
        if self._deframer.held:
            self._deframer.drop()
        if self._arrived is not None:
            self._wake(self._arrived)
        if self._expiry is not None:
            self._expiry.cancel()
        for callback in self._callbacks:
            self._loop.call_soon(callback, self)

    def _expire(self) -> None:
        self._was_cancelled = True
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self.task is not None:
            self.task.cancel()

    # Messages.

    @property
    def waits_for_rest(self) -> bool:
        """Whether the rest of the next message comes without being asked for."""
        try:
            missing = self._deframer.missing
        except TooLongError:
            return False
        return not self._no_more and 0 < missing <= STREAM_WINDOW - self._deframer.held

    def whole(self) -> bytes | None:
        """Return the next message, which stays, if it is all that came."""
        return self._deframer.whole()

    def take_whole(self) -> bytes | None:
        """Return the next message as it came, if it is all that came: `read` would not wait."""
        message = self._deframer.take_whole()
        if message is not None:
            self._consume(self._unconsumed)
        return message

    async def read(self) -> Any:
        """Return the next message; grpc.aio.EOF after the last. Ends the call if one cannot be read.

        Raises grpc.aio.InternalError if the call has ended.
        """
        deframer = self._deframer
        try:
            while missing := deframer.missing:
                if self._no_more:
                    deframer.check_end()
                    return grpc.aio.EOF
                await self._more(missing)
            message, is_compressed = deframer.take()
            self._consume(max(0, self._unconsumed - deframer.held))
            if is_compressed:
                message = await self._decompressed(message)
        except TooLongError as error:
            await self._refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), Reason.TOO_LARGE)
        except UnknownEncodingError as error:
            await self._refuse(grpc.StatusCode.UNIMPLEMENTED, str(error), Reason.UNKNOWN_ENCODING)
        except ValueError as error:
            await self._refuse(grpc.StatusCode.INTERNAL, str(error), Reason.BAD_CALL)
        try:
            return self.deserialize(message)
        except Exception:  # noqa: BLE001  that of any library
            text = "a message cannot be deserialized"
            await self._refuse(grpc.StatusCode.INTERNAL, text, Reason.BAD_CALL)

    async def _refuse(
        self, code: grpc.StatusCode, text: str, reason: "Reason.ValueType"
    ) -> NoReturn:
        await self.abort(code, text, details(code, text, reason))

    def next_at_hand(self) -> bytes | None:
        """Return the next message as it came, if `read` would not wait and not decompress it."""
        size = self._deframer.next_bytes
        if size is None or self._deframer.is_incomplete(size):
            return None
        message, _ = self._deframer.take()
        self._consume(max(0, self._unconsumed - self._deframer.held))
        return message

    async def _more(self, missing: int) -> None:
        """Send what is to be sent, and wait for bytes of a message that lacks `missing` bytes."""
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
        """The length of the next message, if it is known before the message has come."""
        return self._deframer.next_bytes

    def _consume(self, size: int) -> None:
        # Nothing more comes after the last message, so its window need not be open.
        if size and not self._no_more and not self.is_closed:
            self._unconsumed -= size
            self._link.session.consume(self._stream, size)

    async def messages(self) -> AsyncIterator[Any]:
        """Yield the messages, for handlers that take an iterator."""
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def write(self, message: Any) -> None:
        """Send a message; return once the client's window has taken it.

        Raises grpc.aio.InternalError if the call has ended.
        """
        self.put(message)
        await self.drain()

    def put(self, message: Any) -> int:
        """Put a message that goes out once the handler waits for the client, or ends the call.

        Return the bytes of the answer that are not sent. Raises grpc.aio.InternalError if the call has
        ended.
        """
        self._check_open()
        if self._put is None:
            self._put = []
        self._put.append(framed(self.serialize(message)))
        return sum(map(len, self._put)) + self._link.session.unsent_of(self._stream)

    def _give(self) -> None:
        """Give what was put to the session."""
        if self._put:
            self._begin()
            self._link.session.write(self._stream, b"".join(self._put))
            self._put.clear()

    async def drain(self) -> None:
        """Send all messages that were put; return once the client's window has taken them.

        Raises grpc.aio.InternalError if the call has ended.
        """
        self._give()
        self._link.flush()
        if self._link.session.unsent_of(self._stream):
            self._sent = self._loop.create_future()
            try:
                await self._sent
            finally:
                self._sent = None
            if self.is_closed:
                raise grpc.aio.InternalError("the call has ended")

    def _check_open(self) -> None:
        if self._is_ended or self.is_closed:
            raise grpc.aio.InternalError("the call has ended")

    def _begin(self) -> None:
        if self._initial is not None:
            self._link.session.answer(self._stream, self._beginning())
            self._initial = None

    def _beginning(self) -> Headers:
        return [*BEGINNING, *self._initial] if self._initial else BEGINNING

    @staticmethod
    def _wake(waiting: asyncio.Future[None]) -> None:
        if not waiting.done():
            waiting.set_result(None)

    # What else handlers may ask of a call.

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Any = (),
    ) -> NoReturn:
        """End the call with an error. Raises grpc.aio.AbortError."""
        if code is grpc.StatusCode.OK:
            code, details = grpc.StatusCode.UNKNOWN, "abort with the status OK"
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        self.end(code, details)
        raise grpc.aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the call with an error."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Begin the answer with metadata.

        Raises grpc.aio.UsageError if it has begun, and ValueError if metadata cannot be sent.
        """
        self._check_open()
        if self._initial is None:
            raise grpc.aio.UsageError("the answer has begun already")
        self._initial = written(initial_metadata)
        self._begin()
        self._link.flush()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with this context once the call has ended."""
        if self._is_ended:
            self._loop.call_soon(callback, self)
        else:
            self._callbacks = (*self._callbacks, callback)

    def if_gone(self, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read what `write` has sent.

        The client has reset the stream, now or after the whole answer was sent; or its connection is
        lost, and it has answered no ping that was sent after those messages.
        """
        if self.is_closed:
            call()
        else:
            self._link.if_gone(self._stream, call)

    def cancelled(self) -> bool:
        """Return whether the caller has gone, or its deadline has passed, before the answer."""
        return self._was_cancelled

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._is_ended
