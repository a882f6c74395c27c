"""gRPC's messages on a stream: a byte (1: compressed), a length of 4 bytes, the message.

Source: gRPC over HTTP2 (grpc/doc/PROTOCOL-HTTP2.md), Length-Prefixed-Message.
"""

import zlib
from collections.abc import Iterator, Sequence

PREFIX = 5
"""Bytes before each message."""
STEP_BYTES = 1 << 18
"""Bytes that are decompressed in one step, which takes less than a millisecond."""
_WINDOW = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


class TooLongError(ValueError):
    """A message is longer than allowed."""


class UnknownEncodingError(ValueError):
    """The compression of a message is not supported."""


def framed(message: bytes) -> bytes:
    """Return a message with its prefix, uncompressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Deframer:
    """Cuts the bytes of one call into messages of at most `most` bytes."""

    __slots__ = ("_chunks", "_encoding", "_is_whole", "_most", "_offset", "_prefix", "held")

    def __init__(self, most: int, encoding: bytes) -> None:
        self._most = most
        self._encoding = encoding
        self._chunks: list[bytes] = []
        self._offset = 0
        """Bytes of the first chunk that were cut off; less than 0 if it lacks the prefix."""
        self._prefix = b""
        """The prefix of the next message, once it is there."""
        self._is_whole = False
        """Whether the only chunk is a message without its prefix, and not compressed."""
        self.held = 0
        """The bytes that are not cut into messages."""

    def put(self, chunks: Sequence[memoryview]) -> int:
        """Append at least one chunk of bytes that arrived; return the number of bytes."""
        first = chunks[0]
        size = sum(map(len, chunks))
        if (
            not self.held
            and len(first) >= PREFIX
            and size == PREFIX + int.from_bytes(first[1:PREFIX], "big")
        ):
            # Most calls have one message, which is copied once.
            self._prefix = bytes(first[:PREFIX])
            self._chunks.append(b"".join((first[PREFIX:], *chunks[1:])))
            self._offset = -PREFIX
            self._is_whole = not first[0] and size <= PREFIX + self._most
        else:
            self._chunks.append(b"".join(chunks))
            self._is_whole = False
        self.held += size
        return size

    def whole(self) -> bytes | None:
        """Return the next message and keep it; None if it is compressed or not all that came."""
        if not self._is_whole:
            if self.held < PREFIX:
                return None
            size = self._next_bytes()
            if self.held != PREFIX + size or self._prefix[0] or size > self._most:
                return None
            at = self._offset + PREFIX
            self._chunks = [b"".join((memoryview(self._chunks[0])[at:], *self._chunks[1:]))]
            self._offset = -PREFIX
            self._is_whole = True
        return self._chunks[0]

    def take_whole(self) -> bytes | None:
        """Return the next message and drop it; None if it is compressed or not all that came."""
        message = self.whole()
        if message is not None:
            self.drop()
        return message

    @property
    def missing(self) -> int:
        """The bytes that the next message, or else its prefix, lacks; 0: none. Raises TooLongError."""
        size = self._next_bytes()
        if size < 0:
            return PREFIX - self.held
        if size > self._most:
            raise self._too_long(size)
        return max(0, PREFIX + size - self.held)

    @property
    def next_bytes(self) -> int | None:
        """The length of the next message; None if its prefix has not come, or if it is compressed."""
        size = self._next_bytes()
        return size if size >= 0 and not self._prefix[0] else None

    def is_incomplete(self, size: int) -> bool:
        """Return whether the next message, of `size` bytes, has not all come or is too long."""
        return size > self._most or PREFIX + size > self.held

    def _next_bytes(self) -> int:
        """Return the length of the next message; -1 if its prefix has not come."""
        if not self._prefix:
            if self.held < PREFIX:
                return -1
            self._join(PREFIX)
            self._prefix = self._chunks[0][self._offset : self._offset + PREFIX]
        return int.from_bytes(self._prefix[1:], "big")

    def take(self) -> tuple[bytes, bool]:
        """Return the next message, which must have come, and whether it is compressed."""
        size = PREFIX + self._next_bytes()
        kind, self._prefix = self._prefix[0], b""
        self._is_whole = False
        if kind > 1:
            raise ValueError(f"a message begins with {kind}, not with 0 or 1")
        if size == self.held:
            at = self._offset + PREFIX
            if len(self._chunks) == 1 and not at:
                message = self._chunks[0]
            else:
                message = b"".join((memoryview(self._chunks[0])[at:], *self._chunks[1:]))
            self._chunks, self._offset, self.held = [], 0, 0
            return message, kind == 1
        self._join(size)
        begin, end = self._offset, self._offset + size
        message = self._chunks[0][begin + PREFIX : end]
        self.held -= size
        if end < len(self._chunks[0]):
            self._offset = end
        else:
            del self._chunks[0]
            self._offset = 0
        return message, kind == 1

    def drop(self) -> None:
        """Forget all bytes: nobody reads them any more."""
        self._chunks, self._offset, self._prefix, self.held = [], 0, b"", 0
        self._is_whole = False

    def check_end(self) -> None:
        """Check, once all bytes have come, that they end with a message. Raises ValueError if not."""
        if self.held:
            raise ValueError("the call's last message is cut off")

    def _join(self, size: int) -> None:
        """Join chunks until the first one has the next `size` bytes."""
        chunks = self._chunks
        if len(chunks[0]) - self._offset < size:
            chunks[0] = chunks[0][self._offset :]
            self._offset = 0
            self._chunks = [b"".join(chunks)]

    def decompress(self, message: bytes) -> Iterator[bytes]:
        """Yield the parts of a compressed message, in steps that are short enough for an event loop.

        Raises TooLongError, UnknownEncodingError, and ValueError if it cannot be decompressed.
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
            f"a message has {size} bytes or more, and at most {self._most} are read "
            "(limits.max-prompt-bytes and limits.max-prompt-tokens)"
        )
