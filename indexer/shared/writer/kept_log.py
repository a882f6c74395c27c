"""Decides which entries of a pod's log are kept, by their number and their bytes."""

from collections import deque

from warmpath.process.invariant import BrokenInvariantError

LOG_ENTRIES = 10_000
LOG_BYTES = 4 << 20
"""Half a million keys: minutes of a busy engine. A router reads the log twenty times a second."""


class KeptLog:
    """Counts the entries of a pod's log in Redis, and says from which one on they are kept.

    The writer makes one for each claim, when the log is empty, and adds every entry that it writes.
    """

    def __init__(self, *, entries: int = LOG_ENTRIES, max_bytes: int = LOG_BYTES) -> None:
        self.bytes = 0
        self._most = entries
        self._max_bytes = max_bytes
        self._entries: deque[tuple[int, int]] = deque()
        """The last sequence and the bytes of each entry."""

    def add(self, last: int, size: int) -> int:
        """Count a new entry; return the last sequence of the first entry that is to be kept."""
        self._entries.append((last, size))
        self.bytes += size
        while len(self._entries) > 1 and (
            len(self._entries) > self._most or self.bytes > self._max_bytes
        ):
            self.bytes -= self._entries.popleft()[1]
        return self._entries[0][0]

    def check(self) -> None:
        """Raise BrokenInvariantError where the bytes do not add up."""
        if self.bytes != sum(size for _, size in self._entries):
            raise BrokenInvariantError("the bytes of the log do not add up")
