"""What libnghttp2 finds and sends in one call of it: compiled callbacks write it, a session reads it.

So an event costs no step of Python of its own. The journal is one block of memory: numbers, then rows of
events, the headers of calls, and the bytes to send. All sessions of a thread share it, one after the
other.
"""

import ctypes as c
import mmap
from collections.abc import Iterator, Mapping

from warmpath.h2grpc.http2.library import MOST_HEADERS, Headers, header_array
from warmpath.h2grpc.http2.limits import FRAMES_A_MESSAGE, SMALL_BYTES, Http2Limits

RECEIVE_BYTES = 128 << 10
"""Most bytes that libnghttp2 is given at once."""
SEND_BYTES = 128 << 10
"""Most bytes to send that libnghttp2 gives at once."""
FRAME_HEAD_BYTES = 9

# Indices of the numbers.
(
    HERE,  # the journal's address
    COUNT,  # rows
    HEADERS_TOP,  # where the memory for headers ends
    HEADERS_AT,  # where the next header goes
    BLOCK_AT,  # where the headers of the call that came last begin
    BLOCK_BYTES,  # their bytes, as HTTP/2 counts them
    IN_BLOCK,  # whether they have not ended
    IS_NEW_BLOCK,  # whether they began in this call
    MOST_BYTES,  # bytes of a call's headers beyond which the others are left out
    RESET_BYTES,  # bytes beyond which the call is reset
    IS_BUSY,  # whether calls of some methods are refused beyond the room for them
    ROOM,  # how many more calls of these methods may begin
    URGENT_ROOM,  # how many of those among them that are urgent
    METHODS,  # the length of the list of these methods, METHOD numbers each
    METHODS_AT,  # its address
    REFUSAL_AT,  # the address of the headers with which a call is refused
    REFUSAL_HEADERS,  # their number
    INPUT,  # the address of the bytes that arrived
    PAYLOAD,  # bytes of messages in them
    TOLD,  # bytes of the frames of which libnghttp2 tells, without those of messages
    FRAMES,  # frames that count
    EARNED,  # what DATA frames earned, in 1 / SMALL_BYTES of a frame
    RESET,  # the stream that the client reset last
    HAS_PONG,  # whether the client answered a ping
    HAS_SETTINGS,  # whether the client's settings have come
    OUTPUT,  # where the bytes to send begin
    SENT,  # the bytes to send
    IS_FULL,  # whether there is no room for more of them
    TAKEN,  # bytes taken out of bodies
    FILLS,  # DATA frames for which they were taken
    WANTS,  # READ and WRITE
    *_,
) = range(40)
NUMBERS = 40
READ, WRITE = 1, 2
"""The bits of WANTS: libnghttp2 wants to read, and to write."""

# Kinds of rows: kind, stream, and two numbers.
HEADERS, LONG_HEADERS = 0, 1
"""Headers of a call, in memory from the first number to the second; LONG_HEADERS: some are left out."""
CHUNK = 2
"""A part of a message: its place in the bytes that arrived, and its size."""
END = 3
"""The client sends no more of a call."""
CLOSED = 4
"""A stream is closed: with an error code, and whether the client has reset it."""
REFILL = 5
"""A body's chunk was sent, and more follow (`OutgoingBody.refill`)."""
DRAINED = 6
"""A body was sent whole, and more may come."""
ANSWERED = 7
"""An answer is complete before its request."""
REFUSED = 8
"""A call was refused: its method's place in `refusable`, and whether the client sends no more of it."""
RESET_LATE = 9
"""The client has reset a stream that had ended."""

MOST_EARNED = FRAMES_A_MESSAGE * SMALL_BYTES

METHOD = 3
"""How many numbers a method has: the size and address of its path, and whether it is urgent."""

ROW = 4
MOST_ROWS = 3 * RECEIVE_BYTES // FRAME_HEAD_BYTES
"""Most rows of one call of libnghttp2: each frame makes at most three."""
WORDS = NUMBERS + ROW * MOST_ROWS
HEADERS_BOTTOM = 8 * WORDS
"""The place, in bytes from the journal's address, where the memory for headers begins."""


class Journal:
    """The journal of one thread.

    `refusable` has the paths of the methods whose calls can be refused, and whether each is urgent.
    """

    def __init__(self, limits: Http2Limits, refusable: Mapping[str, bool] | None = None) -> None:
        # A call whose headers find no room is refused, as one with too many.
        top = HEADERS_BOTTOM + limits.streams * limits.header_bytes
        # The pages that are never written take no memory.
        self._memory = memoryview(mmap.mmap(-1, top + SEND_BYTES))
        self._words = words = self._memory[:HEADERS_BOTTOM].cast("q")
        self.address = words[HERE] = c.addressof(c.c_char.from_buffer(self._memory))
        words[HEADERS_TOP] = words[OUTPUT] = self._output = top
        words[HEADERS_AT] = HEADERS_BOTTOM
        words[MOST_BYTES] = limits.header_bytes
        words[RESET_BYTES] = MOST_HEADERS * limits.header_bytes
        self.refusable = tuple(refusable or ())
        # The addresses below are those of objects that live as long as this one.
        self._paths = [c.create_string_buffer(path.encode()) for path in self.refusable]
        rows: list[int] = []
        for path, is_urgent in zip(self._paths, (refusable or {}).values(), strict=True):
            rows += (len(path.value), c.addressof(path), is_urgent)
        self._methods = (c.c_int64 * len(rows))(*rows)
        words[METHODS], words[METHODS_AT] = len(rows), c.addressof(self._methods)
        self.refusal: object = None
        """The last `refusal` that `refuse_with` was given."""

    def limit(self, rooms: tuple[int, int] | None) -> None:
        """Set how many calls of refusable methods, not urgent and urgent, may begin; None: any."""
        words = self._words
        words[IS_BUSY] = rooms is not None
        if rooms is not None:
            words[ROOM], words[URGENT_ROOM] = rooms

    def refuse_with(self, refusal: object, headers: Headers) -> None:
        """Answer calls beyond `limit` with `headers`, those of `refusal`, from now on."""
        self.refusal = refusal
        self._refusal_headers = header_array(headers)
        self._words[REFUSAL_AT] = c.addressof(self._refusal_headers)
        self._words[REFUSAL_HEADERS] = len(headers)

    def numbers(self) -> list[int]:
        """Return the numbers, at the indices above."""
        return self._words[:NUMBERS].tolist()

    def rows(self, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Return the first `count` rows as they are now: kind, stream, and two numbers."""
        flat = iter(self._words[NUMBERS : NUMBERS + ROW * count].tolist())
        return zip(flat, flat, flat, flat, strict=True)

    def headers(self, begin: int, end: int) -> bytes:
        """Return the headers between two places, for `h2grpc.http2.library.pairs` to read."""
        return bytes(self._memory[begin:end])

    def sent(self, size: int) -> bytes:
        """Return the `size` bytes to send."""
        return bytes(self._memory[self._output : self._output + size])

    def unended(self, numbers: list[int]) -> tuple[bytes, int]:
        """Take out headers that have not ended; return them, and their bytes as HTTP/2 counts them."""
        self._words[IN_BLOCK] = 0
        return self.headers(numbers[BLOCK_AT], numbers[HEADERS_AT]), numbers[BLOCK_BYTES]

    def put_back(self, headers: bytes, size: int) -> None:
        """Put in what `unended` has taken out, before the next call for the same session."""
        words, end = self._words, HEADERS_BOTTOM + len(headers)
        self._memory[HEADERS_BOTTOM:end] = headers
        words[BLOCK_AT], words[HEADERS_AT], words[BLOCK_BYTES] = HEADERS_BOTTOM, end, size
        words[IN_BLOCK] = 1
