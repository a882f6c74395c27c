"""gRPC's messages on a stream: a byte (1: compressed), a length of 4 bytes, the message.

Source: gRPC over HTTP2 (grpc/doc/PROTOCOL-HTTP2.md), Length-Prefixed-Message.
"""

import zlib
from collections import deque
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

    __slots__ = ("_chunks", "_encoding", "_most", "_offset", "held")

    def __init__(self, most: int, encoding: bytes) -> None:
        self._most = most
        self._encoding = encoding
        self._chunks: deque[bytes] = deque()
        self._offset = 0
        """Bytes of the first chunk that were cut off."""
        self.held = 0
        """The bytes that are not cut into messages."""

    def put(self, data: bytes) -> None:
        """Append bytes that arrived."""
        if data:
            self._chunks.append(data)
            self.held += len(data)

    @property
    def missing(self) -> int:
        """The bytes that the next message lacks; 0 if it is there. Raises TooLongError."""
        if self.held < PREFIX:
            return PREFIX - self.held
        size = int.from_bytes(self._prefix()[1:], "big")
        if size > self._most:
            raise self._too_long(size)
        return max(0, PREFIX + size - self.held)

    @property
    def next_bytes(self) -> int | None:
        """The length of the next message; None if it has not come, or if the message is compressed."""
        if self.held < PREFIX:
            return None
        prefix = self._prefix()
        return int.from_bytes(prefix[1:], "big") if not prefix[0] else None

    def _prefix(self) -> bytes:
        first = self._chunks[0]
        if len(first) - self._offset < PREFIX:
            # The first chunks are short: make them one.
            while len(first) - self._offset < PREFIX:
                first += self._chunks[1]
                del self._chunks[1]
            self._chunks[0] = first
        return first[self._offset : self._offset + PREFIX]

    def take(self) -> tuple[bytes, bool]:
        """Return the next message, which must be there, and whether it is compressed."""
        prefix = self._prefix()
        if prefix[0] > 1:
            raise ValueError(f"a message begins with {prefix[0]}, not with 0 or 1")
        left = int.from_bytes(prefix[1:], "big")
        self.held -= PREFIX + left
        self._offset += PREFIX
        parts: list[memoryview] = []
        chunks = self._chunks
        while chunks:
            part = memoryview(chunks[0])[self._offset : self._offset + left]
            parts.append(part)
            left -= len(part)
            self._offset += len(part)
            if self._offset < len(chunks[0]):
                break
            chunks.popleft()
            self._offset = 0
            if not left:
                break
        return b"".join(parts), prefix[0] == 1

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
