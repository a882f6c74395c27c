"""Counts the texts or chats that wait to be tokenised or rendered, and refuses too many."""


class FullError(Exception):
    """A text or chat is refused because too many, or too many bytes, wait already."""


class ClosedError(Exception):
    """The tokenizer pool or the renderer was closed."""


class Waiting:
    """Counts what waits; in errors, "4 `things` wait `aim`": "chats", "to be rendered", say."""

    def __init__(self, things: str, aim: str, *, most: int, most_bytes: int) -> None:
        self.count = 0
        self.bytes = 0
        self.refused = 0
        """How many were refused because too many, or too many bytes, were waiting."""
        self._things = things
        self._aim = aim
        self._most = most
        self._most_bytes = most_bytes

    def enter(self, size: int) -> None:
        """Count one more, of `size` bytes. Raises FullError."""
        if self.count >= self._most or self.bytes + size > self._most_bytes:
            self.refused += 1
            raise FullError(
                f"{self.count} {self._things} of {self.bytes} bytes wait {self._aim}; at most "
                f"{self._most} may, and limits.max-queued-bytes is {self._most_bytes}"
            )
        self.count += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        self.count -= 1
        self.bytes -= size
