"""Reads an answer of HTTP/1.1: a generator takes the bytes as they come, empty ones at their end."""

from collections.abc import Generator
from typing import NamedTuple, TypeVar

MOST_LINES_BYTES = 1 << 16
"""The longest head of an answer, or line between two chunks, in bytes."""

T = TypeVar("T")
Reading = Generator[None, bytes, T]


class CutError(Exception):
    """The connection was made, and ended without an answer."""


class WholeAnswer(NamedTuple):
    """An answer that is whole."""

    status: int
    body: bytes
    """The body; empty where it is too long."""
    stays: bool
    """Whether the connection can be used for another request."""


def read(most: int) -> Reading[WholeAnswer]:
    """Read an answer whose body may have `most` bytes. Raises ValueError for other bytes, CutError."""
    data = bytearray()
    status = 100
    while status < 200:
        first, *rest = (yield from _until(data, b"\r\n\r\n")).split(b"\r\n")
        version, code, *_ = first.split(b" ", 2)
        status = int(code)
        if version not in {b"HTTP/1.0", b"HTTP/1.1"} or len(code) != 3:
            raise ValueError
    pairs = (line.partition(b":") for line in rest)
    headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    stays = version == b"HTTP/1.1" and headers.get(b"connection") != b"close"
    length = headers.get(b"content-length")
    if status in {204, 304}:
        body = b""
    elif b"chunked" in headers.get(b"transfer-encoding", b""):
        body = yield from _chunks(data, most)
    elif length is not None:
        body = yield from _exactly(data, min(int(length), most + 1))
    else:
        stays = False
        while len(data) <= most and (more := (yield)):
            data += more
        body, data = bytes(data), bytearray()
    if len(body) > most:
        return WholeAnswer(status, b"", stays=False)
    return WholeAnswer(status, body, stays and not data)


def _more() -> Reading[bytes]:
    more = yield
    if not more:
        raise CutError("the connection was closed before an answer")
    return more


def _until(data: bytearray, end: bytes) -> Reading[bytes]:
    """Take the bytes before `end` from `data`, and `end` too."""
    while (stop := data.find(end)) < 0:
        if len(data) > MOST_LINES_BYTES:
            raise ValueError
        data += yield from _more()
    taken = bytes(data[:stop])
    del data[: stop + len(end)]
    return taken


def _exactly(data: bytearray, size: int) -> Reading[bytes]:
    if size < 0:
        raise ValueError
    while len(data) < size:
        data += yield from _more()
    taken = bytes(data[:size])
    del data[:size]
    return taken


def _chunks(data: bytearray, most: int) -> Reading[bytes]:
    """Take the chunks from `data`; of a body that is too long not all, but more than `most` bytes."""
    body = bytearray()
    while size := int((yield from _until(data, b"\r\n")).partition(b";")[0], 16):
        body += yield from _exactly(data, min(size, most + 1))
        if len(body) > most:
            return bytes(body)
        yield from _exactly(data, 2)
    while (yield from _until(data, b"\r\n")):
        pass
    return bytes(body)
