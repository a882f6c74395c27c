"""One HTTP/2 connection of a server, without its socket: bytes in, events and bytes out.

libnghttp2 keeps the states of streams, the windows and the header compression. It also ends a connection
that floods it with CONTINUATION or unanswered acknowledgements; `h2grpc.http2.limits` counts
the frames.

Received bytes count against a stream's window until `consume` gives them back, so a call that nobody
reads holds no more than `STREAM_WINDOW`. The connection's window is always open: its streams are bounded
one by one.

Compiled callbacks write what libnghttp2 finds into a journal, which a session reads when libnghttp2 has
returned. Receiving and sending stay in one file, since both read and change the same streams and bodies.
"""

import ctypes as c
import logging
import struct
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, cast

from warmpath.h2grpc.http2 import journal as of
from warmpath.h2grpc.http2 import library as lib
from warmpath.h2grpc.http2.body import OutgoingBody
from warmpath.h2grpc.http2.events import EndedError, Events
from warmpath.h2grpc.http2.journal import Journal
from warmpath.h2grpc.http2.library import (
    Headers,
    Library,
    header_array,
    load_library,
    server_options,
)
from warmpath.h2grpc.http2.limits import (
    FRAMES_A_CALL,
    FRAMES_A_MESSAGE,
    SMALL_BYTES,
    Allowance,
    Http2Limits,
)

log = logging.getLogger(__name__)

CONNECTION_WINDOW = 1 << 24
QUIET = frozenset({lib.NO_ERROR, lib.CANCEL})
"""Codes with which streams end where nobody broke the protocol."""

OPEN: "set[Session]" = set()
"""The sessions that are not closed: libnghttp2 has memory for them."""


class Session:
    """HTTP/2 as a server speaks it, for one connection. Not thread-safe."""

    def __init__(
        self, events: Events, limits: Http2Limits, clock: Callable[[], float], journal: Journal
    ) -> None:
        # It is compiled when it is imported, for which the library must be there.
        from warmpath.h2grpc.http2 import callbacks  # noqa: PLC0415

        self._lib: Any = load_library()
        self._compiled: Any = callbacks
        self._journal = journal
        self._events = events
        self._limits = limits
        self._clock = clock
        self._allowed = Allowance(limits, clock())
        self._earned = 0
        """Frames that calls and answers have earned the client, and that are not counted yet."""
        self._open: set[int] = set()
        self._bodies: dict[int, OutgoingBody] = {}
        self.unwanted: set[int] = set()
        self._half_open: dict[int, float] = {}
        """Streams whose answer is complete and whose request is not, with the time of the answer."""
        self._answered: list[int] = []
        """Streams whose answer is complete since the last `send`."""
        self.drained: list[int] = []
        """Streams whose body was sent whole, and whose calls are not told yet."""
        self.headers_since: float | None = None
        """Time at which a call's unfinished headers began; None if no headers are under way."""
        self._unended: tuple[bytes, int] | None = None
        """A call's unfinished headers (`Journal.unended`)."""
        self.unsent = 0
        """Bytes of all answers that the client's windows keep from being sent."""
        self.pings = 0
        """Pings that the client has not answered."""
        self.has_begun = False
        """Whether the client's preface and settings have arrived."""
        self._refuses_new = self._owes_goaway = False
        self.wants = of.READ | of.WRITE
        """The journal's READ and WRITE, if there is anything to; 0: the socket can be closed."""
        session = lib.Session()
        options = server_options(self._lib, limits.resets_per_second)
        failed = self._lib.session_server_new2(
            c.byref(session), callbacks.callbacks(), journal.address, options
        )
        self._lib.option_del(options)
        if failed:
            raise MemoryError(f"libnghttp2: {self._lib.strerror(failed).decode()}")
        self._session: Any = session
        OPEN.add(self)
        self._source = lib.DataProvider(None, callbacks.READ)
        self._provider = c.byref(self._source)
        streams = lib.Setting(lib.MAX_CONCURRENT_STREAMS, limits.streams)
        headers = lib.Setting(lib.MAX_HEADER_LIST_SIZE, limits.header_bytes)
        self._lib.submit_settings(session, 0, (lib.Setting * 2)(streams, headers), 2)
        self._lib.session_set_local_window_size(session, 0, 0, CONNECTION_WINDOW)

    def close(self) -> None:
        """Give back the memory of libnghttp2. Methods that would use it raise EndedError after it."""
        if self._session is not None:
            OPEN.discard(self)
            self._lib.session_del(self._session)
            self._session = None
            self._lib = self._compiled = cast("Library", _Closed())
            self._bodies.clear()
            self.unsent = 0

    def receive(self, data: bytes) -> None:
        """Take at most RECEIVE_BYTES of the client and call `Events`. Raises EndedError."""
        assert len(data) <= of.RECEIVE_BYTES
        self._allowed.now = now = self._clock()
        journal = self._journal
        if self._unended is not None:
            journal.put_back(*self._unended)
            self._unended = None
        taken = self._compiled.receive(self._session, data, len(data), journal.address)
        numbers = journal.numbers()
        rows = journal.rows(numbers[of.COUNT])
        headers = journal.headers(of.HEADERS_BOTTOM, numbers[of.HEADERS_AT])
        self.wants = numbers[of.WANTS]
        if numbers[of.IN_BLOCK]:
            self._unended = journal.unended(numbers)
            if self.headers_since is None or numbers[of.IS_NEW_BLOCK]:
                self.headers_since = now
        else:
            self.headers_since = None
        if numbers[of.HAS_PONG]:
            self.pings = 0
        if numbers[of.HAS_SETTINGS]:
            self.has_begun = True
        self._act(rows, data, headers)
        if numbers[of.HAS_PONG]:
            self._events.ponged()
        if taken < 0:
            raise self._error(taken)
        # Frames of a few bytes cost as much as those of many.
        frames = numbers[of.FRAMES] - numbers[of.EARNED] / SMALL_BYTES - self._earned
        self._earned = 0
        self._allowed.count(frames, len(data) - numbers[of.PAYLOAD] - numbers[of.TOLD])

    def send(self, write: Callable[[bytes], object]) -> None:
        """Call `write` with the bytes to send now, part by part; `write` must not call the session.

        Raises EndedError; parts that were written before stay written.
        """
        if self._owes_goaway:
            # Not earlier: calls may have come since, and a second GOAWAY must not name a later one.
            self._owes_goaway = False
            last = self._lib.session_get_last_proc_stream_id(self._session)
            self._lib.submit_goaway(self._session, 0, last, lib.NO_ERROR, None, 0)
        while self._give(write):
            pass
        if self._answered:
            # A client need not send the rest of a request that is answered (RFC 9113, 8.1). A client
            # whose stream is reset while it sends may take that for an error, so it gets time to stop.
            answered, self._answered = self._answered, []
            for stream in answered:
                if self._lib.session_get_stream_remote_close(self._session, stream) == 0:
                    self._half_open[stream] = self._clock()

    def end_half_open(self, before: float) -> None:
        """Reset streams that were answered before a time, and whose client has not ended them."""
        for stream, since in list(self._half_open.items()):
            if since >= before:
                break
            del self._half_open[stream]
            self.reset(stream, lib.NO_ERROR)

    def _give(self, write: Callable[[bytes], object]) -> bool:
        """Write the bytes that libnghttp2 gives at once; return whether there are more."""
        journal = self._journal
        result = self._compiled.send(self._session, journal.address)
        numbers = journal.numbers()
        rows = journal.rows(numbers[of.COUNT])
        self.wants = numbers[of.WANTS]
        self.unsent -= numbers[of.TAKEN]
        self._earned += FRAMES_A_MESSAGE * numbers[of.FILLS]
        if numbers[of.SENT]:
            # Before the rows are acted on: the client waits for an answer, and nobody for its end.
            write(journal.sent(numbers[of.SENT]))
        has_refilled = self._act(rows)
        if result < 0:
            raise self._error(result)
        return has_refilled or bool(numbers[of.IS_FULL])

    def _error(self, result: int) -> EndedError:
        return EndedError(f"HTTP/2: {self._lib.strerror(result).decode()}")

    def goaway_of(self, error: EndedError) -> bytes:
        """Return the GOAWAY frame for an error; after it libnghttp2 must send nothing more."""
        last = self._lib.session_get_last_proc_stream_id(self._session)
        return struct.pack(">BHBBIII", 0, 8, lib.GOAWAY, 0, 0, last, error.code)

    def consume(self, stream: int, size: int) -> None:
        """Give back `size` bytes of a stream's window."""
        self._lib.session_consume_stream(self._session, stream, size)
        self.wants |= of.WRITE

    def widen(self, stream: int, size: int) -> None:
        """Let `size` bytes of a stream arrive before they are consumed."""
        self._lib.session_set_local_window_size(self._session, 0, stream, size)

    def answer(self, stream: int, headers: Headers) -> None:
        """Begin an answer with headers; `write` and `finish` continue it."""
        self._answer(stream, headers, OutgoingBody(is_watched=1))

    def answer_whole(self, stream: int, headers: Headers, data: bytes, trailers: Headers) -> None:
        """Give a whole answer: headers, data and trailers."""
        body = OutgoingBody()
        body.put(data)
        body.end(header_array(trailers))
        self.unsent += len(data)
        self._answer(stream, headers, body)

    def _answer(self, stream: int, headers: Headers, body: OutgoingBody) -> None:
        self._bodies[stream] = body
        self._source.source = c.addressof(body)
        array = header_array(headers)
        self._lib.submit_response(self._session, stream, array, len(array), self._provider)
        self.wants |= of.WRITE

    def answer_at_once(self, stream: int, headers: Headers) -> None:
        """Give an answer without a body; data that the client sends are ignored from now on."""
        self.unwanted.add(stream)
        array = header_array(headers)
        self._lib.submit_response(self._session, stream, array, len(array), None)
        self.wants |= of.WRITE
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
        body.end(header_array(trailers))
        self._resume(stream, body)

    def window_of(self, stream: int) -> int:
        """Return how many bytes of an answer the client's windows let through now."""
        whole = self._lib.session_get_remote_window_size(self._session)
        return int(
            min(whole, self._lib.session_get_stream_remote_window_size(self._session, stream))
        )

    def unsent_of(self, stream: int) -> int:
        """Return the bytes of a stream's body that are not sent."""
        body = self._bodies.get(stream)
        return body.unsent if body else 0

    def unread_since(self, stream: int, now: float) -> float:
        """Return the `now` of the first such call since which nothing of a stream's body was sent."""
        body = self._bodies.get(stream)
        return body.unread_since(now) if body else now

    def reset(self, stream: int, code: int) -> None:
        """Reset a stream."""
        self._lib.submit_rst_stream(self._session, 0, stream, code)
        self.wants |= of.WRITE

    def ping(self) -> None:
        """Ask the client whether it is there."""
        self.pings += 1
        self._lib.submit_ping(self._session, 0, None)
        self.wants |= of.WRITE

    def announce_end(self) -> None:
        """Announce with the next bytes that the connection ends soon; new calls are still taken.

        This is the first of the two GOAWAYs of RFC 9113, 6.8, which names no last call.
        """
        self._lib.submit_shutdown_notice(self._session)
        self.wants |= of.WRITE

    def refuse_new(self) -> None:
        """Announce with the next bytes (GOAWAY) that no more calls are taken; open calls go on."""
        if not self._refuses_new:
            self._refuses_new = self._owes_goaway = True
            self.wants |= of.WRITE

    def terminate(self, code: int) -> None:
        """End the connection and its streams with the next bytes that are sent (GOAWAY with `code`)."""
        self._lib.session_terminate_session(self._session, code)
        self.wants |= of.WRITE

    def _resume(self, stream: int, body: OutgoingBody) -> None:
        if body.is_deferred:
            body.is_deferred = 0
            self._lib.session_resume_data(self._session, stream)
            self.wants |= of.WRITE

    def _act(
        self, rows: Iterable[tuple[int, int, int, int]], data: bytes = b"", headers: bytes = b""
    ) -> bool:
        """Handle the events in the journal's rows; return whether a body has more to send.

        Raises EndedError.
        """
        has_refilled = False
        of_stream = 0
        chunks: list[memoryview] = []
        view = memoryview(data)
        refused: dict[int, int] = {}
        try:
            for kind, stream, first, second in rows:
                if kind == of.CHUNK:
                    if chunks and stream != of_stream:
                        self._events.received(of_stream, chunks)
                        chunks = []
                    if stream not in self.unwanted:
                        of_stream = stream
                        chunks.append(view[first : first + second])
                    continue
                if chunks:
                    self._events.received(of_stream, chunks)
                    chunks = []
                if kind == of.END:
                    self._events.ended(stream)
                elif kind in {of.HEADERS, of.LONG_HEADERS}:
                    block = headers[first - of.HEADERS_BOTTOM : second - of.HEADERS_BOTTOM]
                    self._begun(stream, block, is_too_long=kind == of.LONG_HEADERS)
                elif kind == of.CLOSED:
                    self._half_open.pop(stream, None)
                    if not second and first not in QUIET:
                        # libnghttp2 has reset the stream, since the client broke the protocol.
                        self._allowed.count_reset()
                    if stream in self._open:
                        is_whole = first == lib.NO_ERROR
                        self._closed(stream, is_by_client=bool(second), is_whole=is_whole)
                elif kind == of.RESET_LATE:
                    self._events.reset_late(stream)
                elif kind == of.DRAINED:
                    self.drained.append(stream)
                elif kind == of.ANSWERED:
                    self._answered.append(stream)
                elif kind == of.REFUSED:
                    # A compiled callback has answered the call.
                    if not second:
                        self._half_open[stream] = self._allowed.now
                    refused[first] = refused.get(first, 0) + 1
                elif kind == of.REFILL and (body := self._bodies.get(stream)):
                    body.refill()
                    self._resume(stream, body)
                    has_refilled = True
            if chunks:
                self._events.received(of_stream, chunks)
            for method, count in refused.items():
                self._earned += FRAMES_A_CALL * count
                self._events.refused(self._journal.refusable[method], count)
        except EndedError:
            raise
        except Exception as error:
            log.exception("HTTP/2: an unexpected error")
            raise EndedError("an unexpected error", lib.INTERNAL_ERROR) from error
        return has_refilled

    def _begun(self, stream: int, block: bytes, *, is_too_long: bool) -> None:
        # A stream's second headers are trailers, which no gRPC client sends.
        if stream not in self._open:
            self._open.add(stream)
            self._earned += FRAMES_A_CALL
            self._events.requested(stream, block, is_too_long=is_too_long)

    def _closed(self, stream: int, *, is_by_client: bool, is_whole: bool) -> None:
        """Forget an open stream, which has ended."""
        self._open.remove(stream)
        self.unwanted.discard(stream)
        body = self._bodies.pop(stream, None)
        if body is not None:
            self.unsent -= body.unsent
        elif is_by_client:
            # Envoy resets each stream of its external processing at the end, after its answers.
            self._allowed.count_reset()
        self._events.closed(stream, is_whole=is_whole)


class _Closed:
    """The library of a closed session, whose memory must not be touched."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EndedError("the connection is closed")
