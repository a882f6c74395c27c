"""The headers of one call while they arrive."""

from collections.abc import Sequence

MOST_HEADERS = 4
"""A call whose headers exceed this multiple of `Limits.header_bytes` is reset; it gets no status."""

Headers = Sequence[tuple[bytes, bytes]]


class HeaderBlock:
    """Collects headers of at most `most` bytes; each counts 32 more than its name and value."""

    __slots__ = ("_bytes", "_headers", "_most", "since")

    def __init__(self, most: int) -> None:
        self._most = most
        self._headers: list[tuple[bytes, bytes]] = []
        self._bytes = 0
        self.since: float | None = None
        """Time at which the headers began; None once they have ended."""

    def begin(self, now: float) -> None:
        """Begin the headers of a call."""
        self._headers = []
        self._bytes = 0
        self.since = now

    def put(self, name: bytes, value: bytes) -> bool:
        """Take a name and its value; return False if the headers are so long that the call is reset."""
        # RFC 9113, 6.5.2
        self._bytes += len(name) + len(value) + 32
        if self._bytes <= self._most:
            self._headers.append((name, value))
        return self._bytes <= MOST_HEADERS * self._most

    def end(self) -> tuple[Headers, bool]:
        """End the headers; return those within `most` bytes, and whether there were more."""
        headers, self._headers = self._headers, []
        self.since = None
        return headers, self._bytes > self._most

    def give_up(self) -> None:
        """Forget headers whose rest libnghttp2 ignores."""
        self._headers = []
        self.since = None
