"""The events that a session finds in the bytes of a client."""

from typing import Protocol

from router.transport.header_block import Headers
from router.transport.library import ENHANCE_YOUR_CALM, PROTOCOL_ERROR


class EndedError(Exception):
    """The connection has to end: the client broke the protocol or a limit. `code` is one of HTTP/2's."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def flood(what: str, limit: str) -> EndedError:
    """Return the error of a client that sends more of something than a limit allows."""
    text = f"more {what} than server.http2 allows ({limit})"
    return EndedError(text, ENHANCE_YOUR_CALM)


class Events(Protocol):
    """Takes the events of a session, in the call of `Session.receive` that finds them."""

    def requested(self, stream: int, headers: Headers, *, is_too_long: bool) -> None:
        """Begin a call. Headers beyond `Limits.header_bytes` are left out."""

    def received(self, stream: int, data: bytes) -> None:
        """Take data of a call; they count against the stream's window until they are consumed."""

    def ended(self, stream: int) -> None:
        """Note that the client sends no more data of a call."""

    def closed(self, stream: int) -> None:
        """End a call: its stream is closed, or was reset by either side."""
