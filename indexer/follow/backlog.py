"""The messages of one connection that were read from its socket and wait to be applied."""

from collections import deque


class Backlog:
    """A bounded queue of messages, in lists as they were read, of at most `max_bytes` in total."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, list[list[bytes]]]] = deque()
        self._bytes = 0
        self._since: int | None = None
        """Bytes added since the first drop after the socket was last empty; None: no such drop."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, messages: list[list[bytes]], size: int) -> int:
        """Add messages of `size` bytes; if they do not fit, drop all earlier ones.

        Returns the number of dropped messages. The newest always stay: their sequence shows the gap.
        """
        let_go = 0
        if self._bytes + size > self._max_bytes:
            let_go = sum(len(waiting) for _, waiting in self._waiting)
            self._waiting.clear()
            self._bytes = 0
            self._since = self._since or 0
        self.add(messages, size)
        return let_go

    def add(self, messages: list[list[bytes]], size: int) -> None:
        """Add messages of `size` bytes without regard to the bound; see `is_full`."""
        self._waiting.append((size, messages))
        self._bytes += size
        if self._since is not None:
            self._since += size

    def emptied(self) -> None:
        """Record that the socket has been read empty.

        While that never happens, messages come faster than they are read (`is_endless`).
        """
        self._since = None

    def is_endless(self, spare: int) -> bool:
        """Return whether more than `max_bytes` + `spare` bytes came since the drop of `_since`."""
        return self._since is not None and self._since > self._max_bytes + spare

    @property
    def is_full(self) -> bool:
        """Whether the bound is reached; a single addition of any size does not count."""
        return self._bytes >= self._max_bytes and len(self._waiting) > 1

    def take(self) -> list[list[bytes]]:
        size, messages = self._waiting.popleft()
        self._bytes -= size
        return messages
