"""The unsent data of one answer."""

import ctypes as c
from collections import deque
from typing import Any

# The fields by their position, for compiled code: each takes a word.
DATA, LEFT, HAS_MORE, TRAILERS, TRAILER_COUNT, IS_FINAL, IS_WATCHED, IS_DEFERRED = range(8)
WORDS = 8


class OutgoingBody(c.Structure):
    """Keeps chunks of data until `h2grpc.http2.callbacks` takes them out, one after the other."""

    _fields_ = (
        ("_data", c.c_char_p),
        ("_left", c.c_ssize_t),
        ("_has_more", c.c_ssize_t),
        ("_trailers", c.c_void_p),
        ("_trailer_count", c.c_ssize_t),
        ("_is_final", c.c_ssize_t),
        ("is_watched", c.c_ssize_t),
        ("is_deferred", c.c_ssize_t),
    )
    _data: bytes
    _left: int
    _has_more: int
    is_watched: int
    """Whether the journal is to tell when all data are sent (`DRAINED`)."""
    is_deferred: int
    """Whether libnghttp2 found no data, and asks again only after `session_resume_data`."""
    _queue: deque[bytes] | None = None
    """The chunks after the one that is being sent."""
    _queued = 0
    """The bytes in `_queue`."""
    _ending: Any = None
    """The trailers, which must live as long as they may be sent."""
    _seen = -1
    """The value of `unsent` at the last look; it has been the same since `_seen_at`."""
    _seen_at = 0.0

    def put(self, data: bytes) -> None:
        """Append data."""
        if not data:
            return
        if not self._left and not self._queue:
            self._data, self._left = data, len(data)
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(data)
        self._queued += len(data)
        self._has_more = 1

    def end(self, trailers: Any) -> None:
        """End the answer with its trailers (an array of nghttp2_nv); no more data come."""
        self._ending = trailers
        self._trailers, self._trailer_count = c.addressof(trailers), len(trailers)
        self._is_final = 1

    def refill(self) -> None:
        """Let the next chunk be sent; the one before was sent whole."""
        assert self._queue
        assert not self._left
        data = self._queue.popleft()
        self._queued -= len(data)
        self._data, self._left = data, len(data)
        self._has_more = int(bool(self._queue))

    @property
    def unsent(self) -> int:
        """The bytes that are not sent."""
        return self._left + self._queued

    def unread_since(self, now: float) -> float:
        """Return the `now` of the first such call since which the number of unsent bytes is the same."""
        if self.unsent != self._seen:
            self._seen, self._seen_at = self.unsent, now
        return self._seen_at
