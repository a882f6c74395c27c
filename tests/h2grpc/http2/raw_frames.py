"""Bytes of HTTP/2 that no library would write: frames of any content, headers in any coding."""

import struct
from collections.abc import Iterable

from tests.router.http2_client import frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(
    10
)
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITIZED = 4, 8, 32
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, REFUSED, CALM = 1, 3, 5, 7, 11


def word(number: int) -> bytes:
    """Return 4 bytes."""
    return struct.pack(">I", number)


def settings(**of: int) -> bytes:
    """Return a SETTINGS frame: table, streams, window, frame, headers."""
    ids = {"table": 1, "streams": 3, "window": 4, "frame": 5, "headers": 6}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", ids[name], of[name]) for name in of))


def integer(number: int, bits: int, first: int = 0) -> bytes:
    """Return an integer of HPACK (RFC 7541, 5.1) whose first byte has `bits` bits of it."""
    most = (1 << bits) - 1
    if number < most:
        return bytes([first | number])
    number -= most
    out = bytearray([first | most])
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


def literal(name: bytes, value: bytes, *, keep: bool = False) -> bytes:
    """Return a header as it is, not compressed; with `keep`, both sides put it into their tables."""
    first = b"\x40" if keep else b"\0"
    return first + integer(len(name), 7) + name + integer(len(value), 7) + value


def indexed(number: int) -> bytes:
    """Return a header that is in the table: 62 is the one kept last."""
    return integer(number, 7, 0x80)


def fields(method: str, *more: tuple[bytes, bytes]) -> bytes:
    """Return the headers of a call."""
    own = (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", f"/t.T/{method}".encode()),
        (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
    )  # fmt: skip
    return b"".join(literal(name, value) for name, value in (*own, *more))


def headers(stream: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    """Return a HEADERS frame."""
    return frame(HEADERS, flags, stream, block)


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    """Return a DATA frame."""
    return frame(DATA, flags, stream, payload)


def message(payload: bytes, flag: int = 0) -> bytes:
    """Return a message of gRPC."""
    return bytes([flag]) + word(len(payload)) + payload


def call(stream: int, method: str, *messages: bytes) -> bytes:
    """Return a whole call."""
    whole = b"".join(message(one) for one in messages)
    return headers(stream, fields(method)) + data(stream, whole, END_STREAM)


def reset(stream: int, code: int = 8) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RESET, 0, stream, word(code))


def window(stream: int, more: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, word(more))


def streams(count: int, first: int = 1) -> Iterable[int]:
    """Return the numbers of streams that a client opens."""
    return range(first, first + 2 * count, 2)
