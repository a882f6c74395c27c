"""gRPC's messages on a stream: a byte (1: compressed), a length of 4 bytes, the message.

Source: gRPC over HTTP2 (grpc/doc/PROTOCOL-HTTP2.md), Length-Prefixed-Message.
"""

import zlib
from collections.abc import Iterator

PREFIX = 5
"""Bytes before each message."""
STEP_BYTES = 1 << 18
"""Bytes that are decompressed in one step, which takes less than a millisecond."""
_WINDOW = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


class TooLongError(ValueError):
    """A message is longer than allowed."""


class UnknownEncodingError(ValueError):
    """A message is compressed in a way that is not understood."""


def framed(message: bytes) -> bytes:
    """Return a message with its prefix, uncompressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Deframer:
    """Cuts the bytes of one call into messages of at most `most` bytes."""

    __slots__ = ("_buffer", "_encoding", "_most")

    def __init__(self, most: int, encoding: bytes) -> None:
        self._most = most
        self._encoding = encoding
        self._buffer = bytearray()

    def put(self, data: bytes) -> None:
        """Append bytes that arrived."""
        self._buffer += data

    @property
    def held(self) -> int:
        """The bytes that are not cut into messages."""
        return len(self._buffer)

    @property
    def missing(self) -> int:
        """The bytes that the next message lacks; 0 if it is there. Raises TooLongError."""
        buffer = self._buffer
        if len(buffer) < PREFIX:
            return PREFIX - len(buffer)
        size = int.from_bytes(buffer[1:PREFIX], "big")
        if size > self._most:
            raise self._too_long(size)
        return max(0, PREFIX + size - len(buffer))

    def take(self) -> tuple[bytes, bool]:
        """Return the next message, which must be there, and whether it is compressed."""
        buffer = self._buffer
        end = PREFIX + int.from_bytes(buffer[1:PREFIX], "big")
        message = bytes(memoryview(buffer)[PREFIX:end])
        flag = buffer[0]
        del buffer[:end]
        if flag > 1:
            raise ValueError(f"a message begins with {flag}, not with 0 or 1")
        return message, flag == 1

    def decompress(self, message: bytes) -> Iterator[bytes]:
        """Yield the parts of a compressed message, in steps that are short enough for an event loop.

        Raises TooLongError, UnknownEncodingError and ValueError.
        """
        if self._encoding == b"identity":
            raise ValueError("a message is marked as compressed, but grpc-encoding is identity")
        if self._encoding not in _WINDOW:
            raise UnknownEncodingError("grpc-encoding: not identity, deflate or gzip")
        machine = zlib.decompressobj(_WINDOW[self._encoding])
        size = 0
        rest = message
        while not machine.eof:
            try:
                part = machine.decompress(rest, STEP_BYTES)
            except zlib.error as error:
                raise ValueError(f"a compressed message cannot be read: {error}") from error
            rest = machine.unconsumed_tail
            size += len(part)
            if size > self._most:
                raise self._too_long(size)
            if not part and not rest and not machine.eof:
                raise ValueError("a compressed message ends in its middle")
            yield part

    def _too_long(self, size: int) -> TooLongError:
        return TooLongError(
            f"a message has {size} bytes or more, and at most {self._most} are read"
        )
