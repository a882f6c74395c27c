"""The functions that libnghttp2 calls, and those that call it, compiled by Numba.

They write the journal (`h2grpc.http2.journal`), and nothing else of Python's. Importing this
module compiles them, or loads them as compiled before.
"""

import ctypes as c
from functools import cache
from typing import Any

import numpy as np

from warmpath.h2grpc.http2 import body
from warmpath.h2grpc.http2 import journal as of
from warmpath.h2grpc.http2 import library as lib
from warmpath.h2grpc.http2.compile import callback, carray, external, inlined, intrinsic
from warmpath.h2grpc.http2.library import load_library

load_library()

_recv = external("nghttp2_session_mem_recv", "intp(intp, intp, intp)")
_send = external("nghttp2_session_send", "int32(intp)")
_consume = external("nghttp2_session_consume_connection", "int32(intp, intp)")
_wants_read = external("nghttp2_session_want_read", "int32(intp)")
_wants_write = external("nghttp2_session_want_write", "int32(intp)")
_submit_trailer = external("nghttp2_submit_trailer", "int32(intp, int32, intp, intp)")
_remote_close = external("nghttp2_session_get_stream_remote_close", "int32(intp, int32)")
_submit_response = external("nghttp2_submit_response", "int32(intp, int32, intp, intp, intp)")
_window = external("nghttp2_session_get_stream_effective_local_window_size", "int32(intp, int32)")
_mark = external("nghttp2_session_set_stream_user_data", "int32(intp, int32, intp)")
_mark_of = external("nghttp2_session_get_stream_user_data", "intp(intp, int32)")
_copy = external("memcpy", "intp(intp, intp, intp)")
_compare = external("memcmp", "int32(intp, intp, intp)")


@intrinsic
def _at(_: Any, __: Any) -> Any:
    """Return an address as a pointer."""
    from numba.core.types import intp, voidptr  # noqa: PLC0415  this module is imported without Numba, too

    def build(context: Any, builder: Any, ___: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(voidptr))

    return voidptr(intp), build


_PATH_BYTES, _COLON, _P = len(":path"), ord(":"), ord("p")


@inlined
def _row(numbers: Any, kind: int, stream: int, first: int, second: int) -> int:
    count = numbers[of.COUNT]
    if count >= of.MOST_ROWS:
        return lib.FAILURE
    at = of.NUMBERS + of.ROW * count
    numbers[at] = kind
    numbers[at + 1] = stream
    numbers[at + 2] = first
    numbers[at + 3] = second
    numbers[of.COUNT] = count + 1
    return 0


@inlined
def _give_up(numbers: Any) -> None:
    """Forget headers of which libnghttp2 ignores the rest."""
    if numbers[of.IN_BLOCK]:
        numbers[of.HEADERS_AT] = numbers[of.BLOCK_AT]
        numbers[of.IN_BLOCK] = 0


@callback("int32(intp, intp, voidptr)")
def _begin_headers(_: int, __: int, user: Any) -> int:
    numbers = carray(user, of.WORDS, np.int64)
    numbers[of.BLOCK_AT] = numbers[of.HEADERS_AT]
    numbers[of.BLOCK_BYTES] = 0
    numbers[of.IN_BLOCK] = numbers[of.IS_NEW_BLOCK] = 1
    return 0


@callback("int32(intp, intp, intp, intp, intp, intp, uint8, voidptr)")
def _header(
    _: int, __: int, name: int, name_size: int, value: int, value_size: int, ___: int, user: Any
) -> int:
    numbers = carray(user, of.WORDS, np.int64)
    # RFC 9113, 6.5.2
    numbers[of.BLOCK_BYTES] += name_size + value_size + 32
    size = numbers[of.BLOCK_BYTES]
    if size > numbers[of.RESET_BYTES]:
        _give_up(numbers)
        return lib.TEMPORAL_FAILURE
    at = numbers[of.HEADERS_AT]
    end = at + 8 + name_size + value_size
    if size > numbers[of.MOST_BYTES] or end > numbers[of.HEADERS_TOP]:
        numbers[of.BLOCK_BYTES] = max(size, numbers[of.MOST_BYTES] + 1)
        return 0
    here = numbers[of.HERE] + at
    lengths = carray(_at(here), 2, np.int32)
    lengths[0] = name_size
    lengths[1] = value_size
    _copy(here + 8, name, name_size)
    _copy(here + 8 + name_size, value, value_size)
    numbers[of.HEADERS_AT] = end
    return 0


@inlined
def _size(memory: Any, at: int) -> int:
    size = 0
    for place in range(4):
        size |= memory[at + place] << 8 * place
    return size


@inlined
def _method(numbers: Any, memory: Any, methods: Any, at: int, end: int) -> int:
    """Return where the refusable method that a block of headers names begins in `methods`; or -1."""
    while at < end:
        name, size = _size(memory, at), _size(memory, at + 4)
        # No other pseudo-header of a request has this length and begins so.
        if name == _PATH_BYTES and memory[at + 8] == _COLON and memory[at + 9] == _P:
            path = numbers[of.HERE] + at + 8 + name
            for row in range(0, len(methods), of.METHOD):
                if methods[row] == size and not _compare(methods[row + 1], path, size):
                    return row
            return -1
        at += 8 + name + size
    return -1


@callback("int32(intp, uint8, int32, intp, intp, voidptr)")
def _chunk(session: int, _: int, stream: int, data: int, size: int, user: Any) -> int:
    numbers = carray(user, of.WORDS, np.int64)
    numbers[of.PAYLOAD] += size
    # A refused call is marked: nobody wants its data.
    if _mark_of(session, stream):
        return 0
    return _row(numbers, of.CHUNK, stream, data - numbers[of.INPUT], size)


@callback("int32(intp, voidptr, voidptr)")
def _frame(session: int, frame: Any, user: Any) -> int:
    numbers = carray(user, of.WORDS, np.int64)
    # struct nghttp2_frame_hd: length, stream, type, flags
    size = carray(frame, 1, np.int64)[0]
    stream = carray(frame, 3, np.int32)[2]
    octets = carray(frame, 14, np.uint8)
    kind, flags = octets[12], octets[13]
    numbers[of.TOLD] += of.FRAME_HEAD_BYTES
    failed = 0
    if kind == lib.DATA:
        numbers[of.FRAMES] += 1
        numbers[of.EARNED] += min(of.MOST_EARNED, size)
    elif kind == lib.HEADERS:
        numbers[of.TOLD] += size
        first, end = numbers[of.BLOCK_AT], numbers[of.HEADERS_AT]
        row = of.LONG_HEADERS if numbers[of.BLOCK_BYTES] > numbers[of.MOST_BYTES] else of.HEADERS
        numbers[of.IN_BLOCK] = 0
        if numbers[of.IS_BUSY]:
            methods = carray(_at(numbers[of.METHODS_AT]), numbers[of.METHODS], np.int64)
            memory = carray(_at(numbers[of.HERE]), numbers[of.HEADERS_TOP], np.uint8)
            method = _method(numbers, memory, methods, first, end)
            room = of.URGENT_ROOM if method >= 0 and methods[method + 2] else of.ROOM
            if method >= 0 and numbers[room] > 0:
                numbers[room] -= 1
            elif method >= 0 and not _submit_response(
                session, stream, numbers[of.REFUSAL_AT], numbers[of.REFUSAL_HEADERS], 0
            ):
                numbers[of.HEADERS_AT] = first
                _mark(session, stream, 1)
                row, first, end = of.REFUSED, method // of.METHOD, flags & lib.END_STREAM
        failed = _row(numbers, row, stream, first, end)
    else:
        numbers[of.TOLD] += size
        numbers[of.FRAMES] += 1
        if kind == lib.RST_STREAM:
            numbers[of.RESET] = stream
            # A client that has read its answer may close the stream without an error (RFC 9113, 8.1).
            if _window(session, stream) < 0 and carray(frame, 5, np.int32)[4] != lib.NO_ERROR:
                failed = _row(numbers, of.RESET_LATE, stream, 0, 0)
        elif kind == lib.SETTINGS:
            if not flags & lib.ACK:
                numbers[of.HAS_SETTINGS] = 1
        elif kind == lib.PING and flags & lib.ACK:
            numbers[of.HAS_PONG] = 1
    if kind <= lib.HEADERS and flags & lib.END_STREAM and not failed:
        failed = _row(numbers, of.END, stream, 0, 0)
    return failed


@callback("int32(intp, intp, int32, voidptr)")
def _invalid(_: int, __: int, ___: int, user: Any) -> int:
    numbers = carray(user, of.WORDS, np.int64)
    _give_up(numbers)
    numbers[of.FRAMES] += 1
    return 0


@callback("int32(intp, int32, uint32, voidptr)")
def _close(_: int, stream: int, code: int, user: Any) -> int:
    numbers = carray(user, of.WORDS, np.int64)
    return _row(numbers, of.CLOSED, stream, code, numbers[of.RESET] == stream)


@callback("intp(intp, int32, intp, intp, voidptr, voidptr, voidptr)")
def _read(  # noqa: PLR0917  as libnghttp2 calls it
    session: int, stream: int, buffer: int, size: int, flags: Any, source: Any, user: Any
) -> int:
    """Write the next data of a body into a buffer; return how many bytes, or DEFERRED."""
    numbers = carray(user, of.WORDS, np.int64)
    words = carray(_at(carray(source, 1, np.int64)[0]), body.WORDS, np.int64)
    filled: int = min(words[body.LEFT], size)
    if filled:
        _copy(buffer, words[body.DATA], filled)
        words[body.DATA] += filled
        words[body.LEFT] -= filled
        numbers[of.TAKEN] += filled
        numbers[of.FILLS] += 1
        if words[body.LEFT] or words[body.HAS_MORE]:
            return filled
        if words[body.IS_WATCHED] and _row(numbers, of.DRAINED, stream, 0, 0):
            return lib.FAILURE
    elif words[body.HAS_MORE] and _row(numbers, of.REFILL, stream, 0, 0):
        return lib.FAILURE
    if words[body.IS_FINAL] and not words[body.HAS_MORE]:
        carray(flags, 1, np.uint32)[0] = lib.DATA_EOF | lib.DATA_NO_END_STREAM
        _submit_trailer(session, stream, words[body.TRAILERS], words[body.TRAILER_COUNT])
        if not _remote_close(session, stream) and _row(numbers, of.ANSWERED, stream, 0, 0):
            return lib.FAILURE
    elif not filled:
        words[body.IS_DEFERRED] = 1
        return lib.DEFERRED
    return filled


@callback("intp(intp, intp, intp, int32, voidptr)")
def _put(_: int, data: int, size: int, ___: int, user: Any) -> int:
    """Take bytes to send."""
    numbers = carray(user, of.WORDS, np.int64)
    taken: int = min(size, of.SEND_BYTES - numbers[of.SENT])
    if not taken:
        numbers[of.IS_FULL] = 1
        return lib.WOULD_BLOCK
    _copy(numbers[of.HERE] + numbers[of.OUTPUT] + numbers[of.SENT], data, taken)
    numbers[of.SENT] += taken
    return taken


@inlined
def _begin(numbers: Any) -> None:
    for at in range(of.INPUT, of.OUTPUT):
        numbers[at] = 0
    for at in range(of.SENT, of.NUMBERS):
        numbers[at] = 0
    numbers[of.COUNT] = 0


@callback("intp(intp, intp, intp, voidptr)")
def _receive(session: int, data: int, size: int, user: Any) -> int:
    numbers = carray(user, of.WORDS, np.int64)
    _begin(numbers)
    numbers[of.IS_NEW_BLOCK] = 0
    if not numbers[of.IN_BLOCK]:
        numbers[of.HEADERS_AT] = of.HEADERS_BOTTOM
    numbers[of.INPUT] = data
    result: int = _recv(session, data, size)
    if numbers[of.PAYLOAD]:
        _consume(session, numbers[of.PAYLOAD])
    numbers[of.WANTS] = _wants_read(session) | _wants_write(session) << 1
    return result


@callback("intp(intp, voidptr)")
def _give(session: int, user: Any) -> int:
    numbers = carray(user, of.WORDS, np.int64)
    _begin(numbers)
    result: int = _send(session)
    numbers[of.WANTS] = _wants_read(session) | _wants_write(session) << 1
    return result


# The interpreter's lock stays held: see `h2grpc.http2.library`.
receive = c.PYFUNCTYPE(c.c_ssize_t, lib.Session, c.c_char_p, c.c_size_t, lib.Pointer)(_receive)
"""Give bytes of a client to a session; return how many it took, or a negative error code."""
send = c.PYFUNCTYPE(c.c_ssize_t, lib.Session, lib.Pointer)(_give)
"""Take the bytes to send out of a session; return 0, or a negative error code."""
READ = _read
"""The function that takes an answer's data out of its `OutgoingBody`."""


@cache
def callbacks() -> lib.Pointer:
    """Return libnghttp2's structure of callbacks, which lives as long as the process."""
    library = load_library()
    made = lib.Pointer()
    library.session_callbacks_new(c.byref(made))
    for name, function in (
        ("on_invalid_frame_recv", _invalid),
        ("on_begin_headers", _begin_headers),
        ("on_header", _header),
        ("on_data_chunk_recv", _chunk),
        ("on_frame_recv", _frame),
        ("on_stream_close", _close),
        ("send", _put),
    ):
        getattr(library, f"session_callbacks_set_{name}_callback")(made, function)
    return made
