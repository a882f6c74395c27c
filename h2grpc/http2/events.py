"""The events that a session finds in a client's bytes, and the error if it broke a rule or a limit."""

from collections.abc import Sequence
from typing import Protocol

from warmpath.h2grpc.http2.library import ENHANCE_YOUR_CALM, PROTOCOL_ERROR


class Events(Protocol):
    """Takes the events of a session, in the call of `Session.receive` that finds them."""

    def requested(self, stream: int, block: bytes, *, is_too_long: bool) -> None:
        """Begin a call; if `is_too_long`, `block` lacks headers beyond `Http2Limits.header_bytes`."""

    def refused(self, method: str, count: int) -> None:
        """Note that calls of a method were refused, since the `Journal` had no room for them."""

    def received(self, stream: int, chunks: Sequence[memoryview]) -> None:
        """Take data of a call; do not keep them, since they are parts of a buffer for all calls.

        They count against the stream's window until they are consumed.
        """

    def ended(self, stream: int) -> None:
        """Note that the client sends no more data of a call."""

    def closed(self, stream: int, *, is_whole: bool) -> None:
        """End a call: its stream is closed, or was reset by either side.

        `is_whole`: without an error.
        """

    def reset_late(self, stream: int) -> None:
        """Note that the client has given up a call whose stream had closed, with its answer unread."""

    def ponged(self) -> None:
        """Note that the client has answered the last ping, and so has read what was sent before."""


class EndedError(Exception):
    """The connection has to end: the client broke the protocol or a limit. `code` is one of HTTP/2's."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def flood(what: str, limit: str) -> EndedError:
    """Return the error for a client that sends more of `what` than `limit` (its words) allows."""
    text = f"more {what} than server.http2 allows ({limit})"
    return EndedError(text, ENHANCE_YOUR_CALM)
