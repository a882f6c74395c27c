"""The messages of one connection that were read from its socket and wait to be followed."""

from collections import deque

from indexer.invariant import BrokenInvariantError


class Backlog:
    """Messages in the order in which they came, many at a time, of at most `max_bytes` together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, list[list[bytes]]]] = deque()
        self._bytes = 0
        self._since: int | None = None
        """Bytes that came since messages were let go; None: none were, or the source was empty since."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, messages: list[list[bytes]], size: int) -> int:
        """Add messages of so many bytes; where they do not fit let go of all before them.

        Returns how many messages were let go. The newest ones always stay: they show that something is
        missing before them.
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
        """Add messages of so many bytes, though they may be too many; see `is_full`."""
        self._waiting.append((size, messages))
        self._bytes += size
        if self._since is not None:
            self._since += size

    def emptied(self) -> None:
        """Take note that nothing is left where the messages come from."""
        self._since = None

    def is_endless(self, spare: int) -> bool:
        """Whether more than may wait and `spare` bytes came, without an end, since some were let go."""
        return self._since is not None and self._since > self._max_bytes + spare

    @property
    def is_full(self) -> bool:
        """Whether no more may be added without letting go; one addition alone always may wait."""
        return self._bytes >= self._max_bytes and len(self._waiting) > 1

    def take(self) -> list[list[bytes]]:
        """Remove and return the messages that were added first."""
        size, messages = self._waiting.popleft()
        self._bytes -= size
        return messages

    def check(self) -> None:
        """Raise BrokenInvariantError where the bytes do not add up, or are more than they may be."""
        if self._bytes != sum(size for size, _ in self._waiting):
            raise BrokenInvariantError("the bytes of what waits do not add up")
        if self._bytes > self._max_bytes and len(self._waiting) > 1:
            raise BrokenInvariantError("more waits than may")
