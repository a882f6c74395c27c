"""Bytes of HTTP/2 that no library would write: frames of any content, headers in any coding."""

import struct
from collections.abc import Iterable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(
    10
)
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITIZED = 4, 8, 32
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, REFUSED, CALM = 1, 3, 5, 7, 11


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + word(stream) + payload


def word(number: int) -> bytes:
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


def fields(method: str, *more: tuple[bytes, bytes], service: str = "t.T") -> bytes:
    own = (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", f"/{service}/{method}".encode()),
        (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
    )  # fmt: skip
    return b"".join(literal(name, value) for name, value in (*own, *more))


def headers(stream: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block)


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream, payload)


def message(payload: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + word(len(payload)) + payload


def call(stream: int, method: str, *messages: bytes, service: str = "t.T") -> bytes:
    whole = b"".join(message(one) for one in messages)
    return headers(stream, fields(method, service=service)) + data(stream, whole, END_STREAM)


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RESET, 0, stream, word(code))


def window(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, word(more))


def streams(count: int, first: int = 1) -> Iterable[int]:
    return range(first, first + 2 * count, 2)
