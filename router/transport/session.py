"""One HTTP/2 connection of a server, without its socket: bytes in, events and bytes out.

libnghttp2 keeps the states of streams, the windows and the header compression. It also ends a connection
that floods it with CONTINUATION or unanswered acknowledgements; `router.transport.limits` counts the
frames.

Received bytes count against a stream's window until `consume` gives them back, so a call that nobody
reads holds no more than `STREAM_WINDOW`. The connection's window is always open: its streams are bounded
one by one.

The file is long since libnghttp2 has one object for all of this: its calls and callbacks share a state.
"""

import ctypes as c
import logging
import struct
from collections.abc import Callable
from typing import Any, NoReturn, cast

from router.transport import library as lib
from router.transport.body import Body
from router.transport.callbacks import PROVIDER, callbacks, register, unregister
from router.transport.events import EndedError, Events, flood
from router.transport.header_block import HeaderBlock, Headers
from router.transport.library import (
    Library,
    Pointer,
    header_array,
    load_library,
    server_options,
)
from router.transport.limits import (
    FRAMES_A_CALL,
    FRAMES_A_MESSAGE,
    IGNORED_BYTES,
    SMALL_BYTES,
    FrameBudget,
    Limits,
)

log = logging.getLogger(__name__)

STREAM_WINDOW = 65_535
"""Bytes of a call that arrive before it is read: HTTP/2's default."""
CONNECTION_WINDOW = 1 << 24


class Session:
    """HTTP/2 as a server speaks it, for one connection. Not thread-safe."""

    def __init__(self, events: Events, limits: Limits, clock: Callable[[], float]) -> None:
        self._lib: Any = load_library()
        self._events = events
        self._limits = limits
        self._clock = clock
        self._budget = FrameBudget(limits.control_frames_per_second, clock())
        self._resets = FrameBudget(limits.resets_per_second, clock())
        self._reset_by_client = 0
        """The stream that the client reset last."""
        self._open: set[int] = set()
        self._bodies: dict[int, Body] = {}
        self.unwanted: set[int] = set()
        self._half_open: dict[int, float] = {}
        """Streams whose answer is complete and whose request is not, with the time of the answer."""
        self._answered: list[int] = []
        """Streams whose answer is complete since the last `to_send`."""
        self._drained: list[int] = []
        self._now = clock()
        """Time at which bytes arrived last."""
        self._payload = 0
        """Bytes of messages in the bytes that arrived last."""
        self._ignored = 0
        """Bytes of frames that libnghttp2 ignored, since `IGNORED_BYTES` of them last counted as a
        frame: all bytes that arrived, less those of the frames that it reported."""
        self.block = HeaderBlock(limits.header_bytes)
        self._problem: BaseException | None = None
        self.unsent = 0
        """Bytes of all answers that the client's windows keep from being sent."""
        self.pings = 0
        """Pings that the client has not answered."""
        self.has_begun = False
        """Whether the client's preface and settings have arrived."""
        self._refuses_new = self._owes_goaway = False
        self._number = register(self)
        session = lib.Session()
        options = server_options(self._lib, limits.resets_per_second)
        failed = self._lib.session_server_new2(c.byref(session), callbacks(), self._number, options)
        self._lib.option_del(options)
        if failed:
            unregister(self._number)
            raise MemoryError(f"libnghttp2: {self._lib.strerror(failed).decode()}")
        self._session: Any = session
        streams = lib.Setting(lib.MAX_CONCURRENT_STREAMS, limits.streams)
        headers = lib.Setting(lib.MAX_HEADER_LIST_SIZE, limits.header_bytes)
        self._lib.submit_settings(session, 0, (lib.Setting * 2)(streams, headers), 2)
        self._lib.session_set_local_window_size(session, 0, 0, CONNECTION_WINDOW)

    def close(self) -> None:
        """Give back the memory of libnghttp2. Methods that would use it raise EndedError after it."""
        if unregister(self._number):
            self._lib.session_del(self._session)
            self._session = None
            self._lib = cast("Library", _Closed())
            self._bodies.clear()
            self.unsent = 0

    def receive(self, data: bytes) -> None:
        """Take bytes of the client and call `Events`. Raises EndedError."""
        self._now = self._clock()
        self._payload = 0
        taken = self._lib.session_mem_recv(self._session, data, len(data))
        if self._payload:
            self._lib.session_consume_connection(self._session, self._payload)
        self._check(taken)
        self._ignored += len(data) - self._payload
        while self._ignored >= IGNORED_BYTES:
            self._ignored -= IGNORED_BYTES
            self._count_frame()

    def to_send(self) -> bytes:
        """Return the bytes that can be sent now. Raises EndedError."""
        if self._owes_goaway:
            # Not earlier: calls may have come since, and a second GOAWAY must not name a later one.
            self._owes_goaway = False
            last = self._lib.session_get_last_proc_stream_id(self._session)
            self._lib.submit_goaway(self._session, 0, last, lib.NO_ERROR, None, 0)
        sent = self._frames()
        if self._answered:
            # A client need not send the rest of a request that is answered (RFC 9113, 8.1). A client
            # whose stream is reset while it sends may take that for an error, so it gets time to stop.
            answered, self._answered = self._answered, []
            for stream in answered:
                if self._lib.session_get_stream_remote_close(self._session, stream) == 0:
                    self._half_open[stream] = self._clock()
        return b"".join(sent) if len(sent) != 1 else sent[0]

    def end_half_open(self, before: float) -> None:
        """Reset streams that were answered before a time, and whose client has not ended them."""
        for stream, since in list(self._half_open.items()):
            if since >= before:
                break
            del self._half_open[stream]
            self.reset(stream, lib.NO_ERROR)

    def _frames(self) -> list[bytes]:
        frames = []
        send, session, pointer = self._lib.session_mem_send, self._session, Pointer()
        at = c.byref(pointer)
        while (size := send(session, at)) > 0:
            frames.append(c.string_at(pointer.value or 0, size))
        self._check(size)
        return frames

    def _check(self, result: int) -> None:
        if self._problem is not None:
            raise self._problem
        if result < 0:
            raise EndedError(f"HTTP/2: {self._lib.strerror(result).decode()}")

    def goaway_of(self, error: EndedError) -> bytes:
        """Return the GOAWAY frame for an error; after it libnghttp2 must send nothing more."""
        last = self._lib.session_get_last_proc_stream_id(self._session)
        return struct.pack(">BHBBIII", 0, 8, lib.GOAWAY, 0, 0, last, error.code)

    @property
    def headers_since(self) -> float | None:
        """Time at which a call's unfinished headers began; None if no headers are under way."""
        return self.block.since

    @property
    def has_more(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._lib.session_want_write(self._session))

    @property
    def is_over(self) -> bool:
        """Whether neither side has anything more to send: the socket can be closed."""
        return not self._lib.session_want_read(self._session) and not self.has_more

    def consume(self, stream: int, size: int) -> None:
        """Give back `size` bytes of a stream's window."""
        self._lib.session_consume_stream(self._session, stream, size)

    def widen(self, stream: int, size: int) -> None:
        """Let `size` bytes of a stream arrive before they are consumed."""
        self._lib.session_set_local_window_size(self._session, 0, stream, size)

    def answer(self, stream: int, headers: Headers) -> None:
        """Begin an answer."""
        self._bodies[stream] = Body()
        array = header_array(headers)
        self._lib.submit_response(self._session, stream, array, len(array), PROVIDER)

    def answer_at_once(self, stream: int, headers: Headers) -> None:
        """Give an answer without a body; what the client sends is of no use from now on."""
        self.unwanted.add(stream)
        array = header_array(headers)
        self._lib.submit_response(self._session, stream, array, len(array), None)
        self._answered.append(stream)

    def write(self, stream: int, data: bytes) -> None:
        """Append data to a body that `answer` has begun."""
        body = self._bodies[stream]
        body.put(data)
        self.unsent += len(data)
        self._resume(stream, body)

    def finish(self, stream: int, trailers: Headers) -> None:
        """End a body with trailers."""
        body = self._bodies[stream]
        body.trailers = header_array(trailers)
        self._resume(stream, body)

    def unsent_of(self, stream: int) -> int:
        """Return the bytes of a stream's body that are not sent."""
        body = self._bodies.get(stream)
        return body.unsent if body else 0

    def unread_since(self, stream: int, now: float) -> float:
        """Return the time since which the client has read nothing of a stream's body, as looks found."""
        body = self._bodies.get(stream)
        return body.unread_since(now) if body else now

    def take_drained(self) -> list[int]:
        """Return the streams whose body was sent whole since the last call."""
        drained, self._drained = self._drained, []
        return drained

    def reset(self, stream: int, code: int) -> None:
        """Reset a stream."""
        self._lib.submit_rst_stream(self._session, 0, stream, code)

    def ping(self) -> None:
        """Ask the client whether it is there."""
        self.pings += 1
        self._lib.submit_ping(self._session, 0, None)

    def refuse_new(self) -> None:
        """Announce with the next bytes (GOAWAY) that no more calls are taken; open calls go on."""
        if not self._refuses_new:
            self._refuses_new = self._owes_goaway = True

    def terminate(self, code: int) -> None:
        """End all streams with the next bytes that are sent."""
        self._lib.session_terminate_session(self._session, code)

    def _resume(self, stream: int, body: Body) -> None:
        if body.is_deferred:
            body.is_deferred = False
            self._lib.session_resume_data(self._session, stream)

    def _count_frame(self) -> None:
        if not self._budget.spend(self._now):
            rate = self._limits.control_frames_per_second
            raise flood("control frames", f"control-frames-per-second = {rate}")

    def _count_reset(self) -> None:
        if not self._resets.spend(self._now):
            rate = self._limits.resets_per_second
            raise flood("resets of calls", f"resets-per-second = {rate}")

    # `Hooks`: the methods that libnghttp2 calls.

    def on_begin_headers(self) -> None:
        """Begin a header."""
        self.block.begin(self._now)

    def on_frame(self, head: Any) -> None:
        """Take a whole frame; the content of headers and data came before."""
        kind = head.type
        self._ignored -= lib.FRAME_HEAD_BYTES
        if kind == lib.DATA:
            # Frames of a few bytes cost as much as those of many.
            self._budget.earn(min(FRAMES_A_MESSAGE, head.length / SMALL_BYTES))
            self._count_frame()
            if head.flags & lib.END_STREAM:
                self._events.ended(head.stream)
            return
        self._ignored -= head.length
        if kind == lib.HEADERS:
            stream = head.stream
            headers, is_too_long = self.block.end()
            # A stream's second headers are trailers, which no gRPC client sends.
            if stream not in self._open:
                self._open.add(stream)
                self._budget.earn(FRAMES_A_CALL)
                self._events.requested(stream, headers, is_too_long=is_too_long)
            if head.flags & lib.END_STREAM:
                self._events.ended(stream)
        else:
            self._count_frame()
            if kind == lib.RST_STREAM:
                self._reset_by_client = head.stream
                # Envoy resets each stream of its external processing at the end, after its answers.
                if head.stream in self._open and head.stream not in self._bodies:
                    self._count_reset()
            if kind == lib.PING and head.flags & lib.ACK:
                self.pings = 0
            self.has_begun = self.has_begun or kind == lib.SETTINGS

    def on_invalid_frame(self) -> None:
        """Note that libnghttp2 ignores a frame and resets its stream, or ends the connection."""
        self.block.give_up()
        self._count_frame()

    def on_unwanted(self, size: int) -> None:
        """Note a part of a DATA frame that is not needed."""
        self._payload += size

    def on_chunk(self, stream: int, data: bytes) -> None:
        """Take a part of a DATA frame."""
        self._payload += len(data)
        self._events.received(stream, data)

    def on_closed(self, stream: int, code: int) -> None:
        """Forget a stream, which ended with one of HTTP/2's error codes."""
        if code not in {lib.NO_ERROR, lib.CANCEL} and stream != self._reset_by_client:
            # libnghttp2 has reset the stream, since the client broke the protocol.
            self._count_reset()
        self._half_open.pop(stream, None)
        self.unwanted.discard(stream)
        body = self._bodies.pop(stream, None)
        if body is not None:
            self.unsent -= body.unsent
        if stream in self._open:
            self._open.remove(stream)
            self._events.closed(stream)

    def on_read(self, stream: int, buffer: int, size: int, flags: Any) -> int:
        """Write the next data of a body into a buffer; return how many bytes, or DEFERRED."""
        body = self._bodies[stream]
        filled = body.take(buffer, size)
        self.unsent -= filled
        if filled:
            self._budget.earn(FRAMES_A_MESSAGE)
        if body.unsent:
            return filled
        if filled:
            self._drained.append(stream)
        if body.trailers is not None:
            flags[0] = lib.DATA_EOF | lib.DATA_NO_END_STREAM
            self._lib.submit_trailer(self._session, stream, body.trailers, len(body.trailers))
            self._answered.append(stream)
        elif not filled:
            body.is_deferred = True
            return lib.DEFERRED
        return filled

    def failed(self, error: BaseException) -> None:
        """Keep the error of one of these methods, which ends the connection."""
        if isinstance(error, Exception) and not isinstance(error, EndedError):
            log.error("HTTP/2: an unexpected error", exc_info=error)
            ended = EndedError("an unexpected error", lib.INTERNAL_ERROR)
            ended.__cause__ = error
            error = ended
        self._problem = self._problem or error


class _Closed:
    """The library of a closed session, whose memory must not be touched."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EndedError("the connection is closed")
