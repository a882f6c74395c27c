"""The unsent data of one answer."""

import ctypes as c
from collections import deque
from typing import Any


class Body:
    """Takes chunks of data, and gives them out in pieces of any size."""

    __slots__ = ("_chunks", "_offset", "_seen", "_seen_at", "is_deferred", "trailers", "unsent")

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._offset = 0
        """Bytes of the first chunk that are sent."""
        self._seen = -1
        """The value of `unsent` at the last look; it has been the same since `_seen_at`."""
        self._seen_at = 0.0
        self.unsent = 0
        self.trailers: Any = None
        """The headers that end the answer, once no more data come."""
        self.is_deferred = False
        """Whether libnghttp2 found no data, and asks again only after `session_resume_data`."""

    def put(self, data: bytes) -> None:
        """Append data."""
        if data:
            self._chunks.append(data)
            self.unsent += len(data)

    def take(self, buffer: int, size: int) -> int:
        """Write the next data, at most `size` bytes, to an address; return how many bytes."""
        chunks = self._chunks
        filled = 0
        while chunks and filled < size:
            chunk = chunks[0]
            piece = chunk[self._offset : self._offset + size - filled]
            c.memmove(buffer + filled, piece, len(piece))
            filled += len(piece)
            self._offset += len(piece)
            if self._offset == len(chunk):
                chunks.popleft()
                self._offset = 0
        self.unsent -= filled
        return filled

    def unread_since(self, now: float) -> float:
        """Return the time of the first look that found as much unsent as there is now."""
        if self.unsent != self._seen:
            self._seen, self._seen_at = self.unsent, now
        return self._seen_at
