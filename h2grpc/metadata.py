"""gRPC's headers: a call's method, deadline and metadata, and the headers and trailers of its answer.

Source: gRPC over HTTP2 (grpc/doc/PROTOCOL-HTTP2.md).

It also reads the names of a connection's client: its address, and the names in its certificate.
"""

import base64
import binascii
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import grpc

from warmpath.h2grpc.http2.library import pairs
from warmpath.h2grpc.method import Metadata

ENCODINGS = (b"identity", b"deflate", b"gzip")
"""Supported compressions of messages."""

KEPT_REQUESTS = 128
"""Number of cached `Request`s, by their headers: most calls of a client have the same headers."""
UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_CONTENT_TYPE = b"application/grpc"
_KEY = re.compile(r"[0-9a-z_.-]+")
_OWN = frozenset({
    b"content-type", b"te", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding",
    b"grpc-message-type", b"host", b"content-length",
})  # fmt: skip
"""Headers of gRPC itself, which are not the caller's metadata."""

MOST_BYTES = 32 << 10
"""Most bytes of the metadata with which an answer begins or ends; libnghttp2 sends less than 64 KiB."""
MESSAGE_BYTES = 8 << 10
"""Most bytes of a status message as it is sent; the rest is left out. Clients of gRPC refuse trailers
from 8 or 16 KiB on."""

BEGINNING = (
    (b":status", b"200"),
    (b"content-type", _CONTENT_TYPE),
    (b"grpc-accept-encoding", b", ".join(ENCODINGS)),
)
"""The headers with which each answer begins."""


class NoCallError(Exception):
    """A request is not gRPC; `status` is the HTTP status of its answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class BadHeaderError(ValueError):
    """A header of a call cannot be read."""


@dataclass(frozen=True, slots=True)
class Request:
    """The headers of a call."""

    method: str
    """/SERVICE/METHOD"""
    seconds: float | None
    """How long the caller waits; None: for ever."""
    encoding: bytes
    """Compression of the messages that are marked as compressed."""
    metadata: Metadata


@lru_cache(KEPT_REQUESTS)
def read_request(block: bytes) -> Request:
    """Read a block of a call's headers. Raises NoCallError and BadHeaderError."""
    method = ""
    seconds = None
    encoding = content_type = b""
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in pairs(block):
        if name[:1] == b":":
            if name == b":path":
                method = value.decode("latin-1")
            elif name == b":method" and value != b"POST":
                raise NoCallError(405, "gRPC calls are POST requests")
        elif name not in _OWN:
            metadata.append(_metadatum(name.decode("latin-1"), value))
        elif name == b"content-type":
            content_type = value
        elif name == b"grpc-timeout":
            seconds = read_timeout(value.decode("latin-1"))
        elif name == b"grpc-encoding":
            encoding = value
    if not content_type.startswith(_CONTENT_TYPE) or content_type[16:17] not in (b"", b"+", b";"):
        raise NoCallError(415, "the content-type of gRPC calls is application/grpc")
    return Request(method, seconds, encoding or b"identity", tuple(metadata))


def read_timeout(text: str) -> float:
    """Return the seconds of a grpc-timeout, one to eight digits and a unit. Raises BadHeaderError."""
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise BadHeaderError("grpc-timeout: not one to eight digits and one of H, M, S, m, u, n")
    return int(found[1]) * UNITS[found[2]]


def _metadatum(key: str, value: bytes) -> tuple[str, str | bytes]:
    if not key.endswith("-bin"):
        # Bytes beyond ASCII are no metadata, but gRPC's own server hands them on, too, as this does.
        try:
            return key, value.decode()
        except UnicodeDecodeError:
            return key, value.decode("latin-1")
    try:
        # Callers leave out the padding.
        return key, base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error as error:
        raise BadHeaderError(f"{key}: not base64") from error


def written(metadata: Iterable[tuple[str, str | bytes]]) -> list[tuple[bytes, bytes]]:
    """Return metadata as headers. Raises ValueError for a key or value that cannot be one."""
    headers = []
    for key, value in metadata:
        if not _KEY.fullmatch(key):
            raise ValueError(f"metadata: {key!r} is not a key")
        if key.endswith("-bin"):
            raw = value.encode() if isinstance(value, str) else value
            headers.append((key.encode(), base64.b64encode(raw).rstrip(b"=")))
            continue
        text = (value if isinstance(value, str) else value.decode("latin-1")).strip(" ")
        if not all(" " <= character <= "~" for character in text):
            raise ValueError(
                f"metadata: the value of {key} has characters that are not printable ASCII"
            )
        headers.append((key.encode(), text.encode()))
    # As HTTP/2 counts them (RFC 9113, 6.5.2).
    if sum(32 + len(key) + len(value) for key, value in headers) > MOST_BYTES:
        raise ValueError(f"metadata: an answer has more than {MOST_BYTES} bytes of it")
    return headers


_OK = ((b"grpc-status", b"0"),)


def trailers_of(
    code: grpc.StatusCode, text: str, metadata: Iterable[tuple[str, str | bytes]] = ()
) -> Sequence[tuple[bytes, bytes]]:
    """Return the headers that end a call. Raises ValueError as `written` does."""
    if code is grpc.StatusCode.OK and not text and not metadata:
        return _OK
    trailers = [(b"grpc-status", b"%d" % code.value[0])]
    # No header's value may begin or end with a space (RFC 9113, 8.2.1): clients end the stream.
    if text := text.strip(" "):
        trailers.append((b"grpc-message", _shortened(percent_encoded(text)).rstrip(b" ")))
    return [*trailers, *written(metadata)]


def percent_encoded(text: str) -> bytes:
    """Return a status message as a header's value: UTF-8, where bytes that are not printable are %XX."""
    raw = text.encode("utf-8", "replace")
    if _PLAIN.fullmatch(raw):
        return raw
    return b"".join(_ENCODED[byte] for byte in raw)


def _shortened(message: bytes) -> bytes:
    cut = message[:MESSAGE_BYTES]
    # A byte that was encoded stays whole: %XX.
    tail = cut.rfind(b"%", MESSAGE_BYTES - 2)
    return cut if tail < 0 or len(cut) == len(message) else cut[:tail]


_PLAIN = re.compile(rb"[ -$&-~]*")
_ENCODED = [
    bytes((byte,)) if _PLAIN.fullmatch(bytes((byte,))) else b"%%%02X" % byte for byte in range(256)
]


KINDS = ("DNS", "URI")
"""The kinds of alternative names in a certificate that name a client."""


def peer_name(address: Any) -> str:
    """Return a socket's address as gRPC writes it: ipv4:1.2.3.4:5, ipv6:%5B::1%5D:5 or unix:."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    if ":" in host:
        return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}"
    return f"ipv4:{host}:{port}"


def address_of(peer: str) -> str:
    """Return a result of `peer_name` without the port: a machine's connections have it in common."""
    return peer.rpartition(":")[0] or peer


def names_of(tls: "ssl.SSLObject | None") -> Sequence[str]:
    """Return a client's names in its certificate: alternative, then common ones; none without one."""
    shown: Any = tls.getpeercert() if tls else None
    if not shown:
        return ()
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind in KINDS]
    subject = (part for parts in shown.get("subject", ()) for part in parts)
    return [*names, *(value for key, value in subject if key == "commonName")]
