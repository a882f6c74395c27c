"""The end of a connection whose client broke the protocol or a limit."""

from warmpath.h2grpc.http2.library import ENHANCE_YOUR_CALM, PROTOCOL_ERROR


class EndedError(Exception):
    """The connection has to end: the client broke the protocol or a limit. `code` is one of HTTP/2's."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def flood(what: str, limit: str) -> EndedError:
    """Return the error of a client that sends more of something than a limit allows."""
    text = f"more {what} than server.http2 allows ({limit})"
    return EndedError(text, ENHANCE_YOUR_CALM)
