"""Reads the messages that have arrived at a ZeroMQ socket; those that wait to be applied are bounded."""

from collections import deque

import zmq

MOST_MESSAGES = 256
MOST_BYTES = 256 << 10
"""How many messages or bytes end a reading, and are followed before other tasks have their turn."""
READ_MESSAGES = 4 * MOST_MESSAGES
READ_BYTES = 8 << 20
"""The most messages and bytes that are read from a socket in one turn: more than are followed, so
that messages that come too fast wait here, within a bound, and not in ZeroMQ, which bounds no bytes."""
MESSAGE_BYTES, PART_BYTES = 200, 40
"""Bytes of memory that a message takes beside its parts' bytes, and that each further part takes."""


def drain(line: "zmq.Socket[bytes]") -> tuple[list[list[bytes]], int]:
    """Return messages that have arrived, up to `MOST_BYTES`, and the bytes of memory that they take."""
    messages: list[list[bytes]] = []
    size = 0
    try:
        while len(messages) < MOST_MESSAGES and size < MOST_BYTES:
            # As `recv_multipart`, which asks for each part whether there are more.
            part = line.recv(zmq.NOBLOCK, copy=False)
            message = [part.bytes]
            size += MESSAGE_BYTES + len(message[0])
            while part.more:
                part = line.recv(zmq.NOBLOCK, copy=False)
                message.append(part.bytes)
                size += PART_BYTES + len(message[-1])
            messages.append(message)
    except zmq.Again:
        pass
    return messages, size


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
        """Whether over `max_bytes` + `spare` came since the first drop after the socket was empty."""
        return self._since is not None and self._since > self._max_bytes + spare

    @property
    def is_full(self) -> bool:
        """Whether the bound is reached; the messages of a single `put` or `add` never reach it."""
        return self._bytes >= self._max_bytes and len(self._waiting) > 1

    def take(self) -> list[list[bytes]]:
        size, messages = self._waiting.popleft()
        self._bytes -= size
        return messages
