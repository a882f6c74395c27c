"""The requests of an HTTP/1.1 connection, whose bodies have a length: bytes in, requests out. No I/O.

Envoy sends the body of what it asks in one piece, with its length; chunks are refused. Nothing is passed
on, so no two readers of one request can differ. Source: RFC 9112.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

MOST_HEAD_BYTES = 64 << 10
"""Longest request line with headers; Envoy's own limit on headers is 60 KiB."""
LENGTH = "content-length"
_END = b"\r\n\r\n"
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(rf"({_NAME}) ([^ \0\r\n]+) ([^ \0\r\n]*)\r\n")
_FIELD = re.compile(rf"(?<=\n)({_NAME}):([^\0\r\n]*)\r\n")
_LENGTH = re.compile(r"[0-9]{1,15}")
_UNSAFE = re.compile(r"[\0\r\n]")
_PHRASES = {
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 408: "Request Timeout",
    413: "Content Too Large", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    501: "Not Implemented", 503: "Service Unavailable", 505: "HTTP Version Not Supported",
}  # fmt: skip


class Request(msgspec.Struct):
    """A whole request."""

    method: str
    target: str
    """The path with its query, as it came."""
    headers: Mapping[str, str]
    """The first value of each header, by its name in lower case."""
    body: bytes
    """The body, or no more than its beginning if it is longer than may be kept."""
    is_last: bool
    """Whether the client wants the connection to be closed."""


class MalformedError(Exception):
    """The connection cannot go on; `status` is the HTTP status of the answer that ends it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Requests:
    """The requests of one connection, in order; each is taken before the next one is read."""

    __slots__ = ("_body", "_head", "_is_taken", "_left", "_may_keep", "_most_body", "_raw", "held")

    def __init__(self, most_body_bytes: int) -> None:
        """Keep at most `most_body_bytes` of a body, and one more; the rest is read and dropped."""
        self._most_body = most_body_bytes
        self._raw = bytearray()
        """Bytes that are not read yet: a part of a head, or what follows a whole request."""
        self._head: Request | None = None
        """The request whose body arrives."""
        self._body: list[bytes] = []
        self._left = 0
        """Bytes of the body that have not come."""
        self.held = 0
        """Bytes of the body that are kept."""
        self._is_taken = False
        self._may_keep = True

    @property
    def has_begun(self) -> bool:
        """Whether a part of a request has come, and not the whole of it."""
        return not self._is_taken and (self._head is not None or bool(self._raw))

    def feed(self, data: bytes, *, may_keep: bool = True) -> None:
        """Take bytes of the client; the body's are dropped unless they may be kept.

        Raises MalformedError if more than a head waits behind a request that is not answered.
        """
        self._may_keep = may_keep
        if self._left:
            piece = data if len(data) <= self._left else data[: self._left]
            self._take(piece)
            data = data[len(piece) :]
        self._raw += data
        if self._is_taken and len(self._raw) > MOST_HEAD_BYTES:
            raise MalformedError(400, "too much follows a request that is not answered yet")

    def next(self) -> Request | None:
        """Return the next request if it is whole, until it is `answered`. Raises MalformedError."""
        if self._is_taken:
            return None
        if self._head is None:
            end = self._raw.find(_END)
            if end < 0 or end > MOST_HEAD_BYTES:
                if len(self._raw) > MOST_HEAD_BYTES:
                    raise MalformedError(431, f"the headers exceed {MOST_HEAD_BYTES} bytes")
                return None
            self._head, self._left = _read(self._raw[: end + 2].decode("latin-1"))
            rest = bytes(self._raw[end + len(_END) :])
            self._raw.clear()
            if rest:
                self.feed(rest, may_keep=self._may_keep)
        if self._left:
            return None
        whole = self._head
        whole.body = b"".join(self._body)
        self._head, self._body, self._is_taken = None, [], True
        return whole

    def answered(self) -> None:
        """Let go of the request that was taken last."""
        self.held, self._is_taken = 0, False

    def _take(self, piece: bytes) -> None:
        self._left -= len(piece)
        room = self._most_body + 1 - self.held if self._may_keep else 0
        if room > 0:
            self._body.append(piece if len(piece) <= room else piece[:room])
            self.held += len(self._body[-1])


def _read(head: str) -> tuple[Request, int]:
    """Return a request without its body, and the body's length; each line ends with CR and LF."""
    if (line := _LINE.match(head)) is None:
        raise MalformedError(400, "the request line is not METHOD TARGET HTTP/1.1")
    method, target, version = line.groups()
    if version != "HTTP/1.1":
        raise MalformedError(505, "only HTTP/1.1 is served")
    fields = _FIELD.findall(head)
    if len(fields) != head.count("\n") - 1:
        raise MalformedError(400, "a header is not NAME: VALUE with CR and LF")
    # The first of equal names stays.
    headers = {name.lower(): value.strip(" \t") for name, value in reversed(fields)}
    if len(headers) != len(fields):
        lengths = {value.strip(" \t") for name, value in fields if name.lower() == LENGTH}
        if len(lengths) > 1:
            raise MalformedError(400, f"{LENGTH}: comes twice")
    if "transfer-encoding" in headers:
        raise MalformedError(501, "transfer-encoding: only bodies with a content-length are read")
    length = headers.get(LENGTH, "0")
    if not _LENGTH.fullmatch(length):
        raise MalformedError(400, f"{LENGTH}: is not a number of bytes")
    is_last = headers.get("connection", "").lower() == "close"
    return Request(method, target, headers, b"", is_last), int(length)


def answer_of(
    status: int, put: Sequence[tuple[str, str]] = (), body: bytes = b"", *, is_last: bool = False
) -> bytes:
    """Return an answer's bytes; what no header may have in its value becomes `?`."""
    lines = [f"HTTP/1.1 {status} {_PHRASES[status]}", f"{LENGTH}: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in put]
    if is_last:
        lines.append("connection: close")
    if _UNSAFE.search("".join(lines)):
        lines = [_UNSAFE.sub("?", line) for line in lines]
    lines.append("\r\n")
    return "\r\n".join(lines).encode("latin-1", "replace") + body
