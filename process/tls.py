"""TLS from PEM files, for listeners and for connections out: new handshakes use the newest files.

Connections that are open go on as they are. Each change makes a new `ssl.SSLContext`, since a context
keeps its sessions: a client could resume a session for two hours after its authority was removed.

Also reads the dates of certificates from PEM, which the standard library shows only after a handshake,
and the names in the certificate that the other side of a connection has shown.
"""

import contextlib
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from warmpath.process.command_line import in_words
from warmpath.process.reread import Reread, problem_of, read_bytes

CERTIFICATES = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
UTC_TIME, GENERALIZED_TIME, VERSION = 0x17, 0x18, 0xA0
"""Tags of DER: the two forms of a time, and a certificate's version."""


class Validity(NamedTuple):
    """The time in which a certificate, or a file of certificates, is valid."""

    begins: datetime
    ends: datetime


def validities(pem: bytes) -> list[Validity]:
    """Return the validity of each certificate in PEM. Raises ValueError for a malformed one."""
    try:
        return [
            _validity(ssl.PEM_cert_to_DER_cert(found.decode("ascii")))
            for found in CERTIFICATES.findall(pem)
        ]
    except (IndexError, ValueError) as error:
        raise ValueError(f"a certificate cannot be read: {error}") from error


def _validity(der: bytes) -> Validity:
    """Read a Certificate of RFC 5280, section 4.1, as far as its validity."""
    [(_, certificate)] = _elements(der)
    (_, signed), *_ = _elements(certificate)
    _serial, _algorithm, _issuer, validity, *_ = (
        content for tag, content in _elements(signed) if tag != VERSION
    )
    begins, ends = _elements(validity)
    return Validity(_time(*begins), _time(*ends))


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(der):
        tag, length, begin = der[at], der[at + 1], at + 2
        if length & 0x80:
            begin += length & 0x7F
            length = int.from_bytes(der[at + 2 : begin], "big")
        at = begin + length
        if at > len(der):
            raise IndexError("it ends early")
        yield tag, der[begin:at]


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == UTC_TIME:
        # RFC 5280, section 4.1.2.5.1: years from 50 on are of the 20th century.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != GENERALIZED_TIME:
        raise ValueError(f"it has an element {tag:#x} in place of a time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


COMMON_NAME = "x509_common_name"
ALTERNATIVE_NAME = "x509_subject_alternative_name"
KINDS = ("DNS", "URI")
"""The kinds of alternative names that name a client. gRPC's library also lists IP and e-mail addresses,
which the configuration refuses as a client's name (`router.config.check`)."""


def auth_context(shown: Mapping[str, Any] | None) -> dict[str, list[bytes]]:
    """Return a certificate's names in the form of gRPC's `auth_context`: lists of bytes by kind.

    `shown` is what `getpeercert()` returned; None or empty: no names. Alternative names are of KINDS.
    """
    if not shown:
        return {}
    common = [
        value for part in shown.get("subject", ()) for key, value in part if key == "commonName"
    ]
    alternative = [value for kind, value in shown.get("subjectAltName", ()) if kind in KINDS]
    found = {COMMON_NAME: common, ALTERNATIVE_NAME: alternative}
    return {key: [name.encode() for name in names] for key, names in found.items() if names}


def names(context: Mapping[str, Iterable[bytes]]) -> Iterator[str]:
    """Yield the names in gRPC's `auth_context`: DNS and URI names, and the common name."""
    for key in (ALTERNATIVE_NAME, COMMON_NAME):
        for name in context.get(key) or ():
            yield name.decode(errors="replace")


log = logging.getLogger(__name__)

CERTIFICATE = b"CERTIFICATE-----", "certificate"
KEY = b"PRIVATE KEY-----", "private key"
"""The end of the lines around a block of PEM (RFC 7468), and a name for the block's content."""


class TlsFilesError(OSError):
    """A file cannot be used; `part` is `ca`, `cert` (alone or with its key) or `key` (not readable)."""

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(problem)
        self.part = part
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the files of `TlsPaths`; empty where no file is given."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, init=False)
class TlsPaths:
    """PEM files: the other side's authority (`ca`), our own certificate chain, and its private key."""

    ca: Path | None
    cert: Path | None
    key: Path | None

    def __init__(
        self,
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
    ) -> None:
        for part, path in (("ca", ca), ("cert", cert), ("key", key)):
            if not isinstance(path, os.PathLike | str | None):
                raise TypeError(f"{part} is of type {type(path).__name__}, not a path")
            object.__setattr__(self, part, None if path is None else Path(path))

    def given(self) -> list[Path]:
        return [path for path in (self.ca, self.cert, self.key) if path]

    def pem(self, contents: Sequence[bytes]) -> Pem:
        """Return the contents by part; `contents` are those of the files of `given`, in its order."""
        left = iter(contents)
        return Pem(*(next(left) if path else b"" for path in (self.ca, self.cert, self.key)))

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Return a context with the files; without `ca` it knows the system's authorities.

        Raises TlsFilesError.
        """
        part, names = "ca", str(self.ca)
        try:
            # OpenSSL opens files by name, and would wait for the writer of a pipe.
            if self.ca:
                read_bytes(self.ca)
            context = ssl.create_default_context(purpose, cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert:
                part, names = "cert", f"{self.cert} with {self.key}"
                for path in (self.cert, self.key):
                    if path:
                        read_bytes(path)
                # Without a given password, OpenSSL would ask for one at the terminal.
                context.load_cert_chain(self.cert, self.key, password="")
        except OSError as error:
            lack = self._lack() if part == "cert" else ""
            problem = lack or f"{error.filename or names} cannot be used: {_problem(error)}"
            raise TlsFilesError(part, problem) from error
        return context

    def _lack(self) -> str:
        """Return which file has no PEM of its kind, as OpenSSL does not say it; empty if both have."""
        for path, (mark, noun) in ((self.cert, CERTIFICATE), (self.key, KEY)):
            with contextlib.suppress(OSError):
                if path and mark not in read_bytes(path):
                    return f"{path} has no {noun} in PEM"
        return ""


def _problem(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "a block of PEM cannot be read"
        return reason.lower().replace("_", " ")
    return in_words(error).removeprefix(f"{error.filename}: ")


def whole(part: str, content: bytes) -> Validity | None:
    """Return the time in which a file is valid; None if it has no certificate.

    The part `cert` is a chain, all of which must be valid; of the authorities of `ca` one is enough.
    Raises ValueError for a malformed certificate.
    """
    found = validities(content)
    begins, ends = (min, max) if part == "ca" else (max, min)
    if not found:
        return None
    return Validity(begins(one.begins for one in found), ends(one.ends for one in found))


def expiries(pem: Pem) -> Iterator[tuple[str, float]]:
    """Yield `ca` and `cert`, where there is such a file, each with the Unix time at which it expires.

    Certificates that cannot be read are left out.
    """
    for part, content in (("ca", pem.ca), ("cert", pem.cert)):
        with contextlib.suppress(ValueError):
            if found := whole(part, content):
                yield part, found.ends.timestamp()


class _Tls:
    """The files of TLS, and the contexts that are made of them whenever they change."""

    def __init__(self, name: str, paths: TlsPaths) -> None:
        """Read the files; `name` is for the log. Raises TlsFilesError."""
        self._name = name
        self._paths = paths
        for part in ("ca", "cert", "key"):
            path = getattr(paths, part)
            if path and (problem := problem_of(path)):
                raise TlsFilesError(part, problem)
        try:
            self.files = Reread(name, paths.given(), self._make)
        except TlsFilesError:
            raise
        except OSError as error:
            raise TlsFilesError("cert", str(error)) from error

    @property
    def pem(self) -> Pem:
        return self.files.value[0]

    def _make(self, contents: Sequence[bytes]) -> tuple[Pem, tuple[ssl.SSLContext, ...]]:
        pem, contexts = self._paths.pem(contents), self._contexts()
        for part, ends in expiries(pem):
            if ends < time.time():
                # A process that did not start would serve nobody, and some do not check.
                on = datetime.fromtimestamp(ends, UTC)
                said = "%s: %s %s has ended, on %s: connections that check it fail"
                log.warning(said, self._name, part, getattr(self._paths, part), f"{on:%Y-%m-%d}")
        return pem, contexts

    def _contexts(self) -> tuple[ssl.SSLContext, ...]:
        raise NotImplementedError


class ServerTls(_Tls):
    """The TLS, 1.2 or newer, of one process's listeners: a certificate, and the authority of callers.

    Where there is an authority, callers must show a certificate of it; those of HTTP may, if
    `http_optional`. The contexts are for listeners of asyncio or uvloop: each connection gets the newest
    certificate.
    """

    def __init__(self, name: str, paths: TlsPaths, *, http_optional: bool = False) -> None:
        """Read the files; `name` is for the log. Raises TlsFilesError."""
        self.asks = bool(paths.ca)
        """Whether callers of gRPC must show a certificate."""
        self._http_optional = http_optional
        super().__init__(name, paths)
        self.grpc_context: ssl.SSLContext = _NewestContext(lambda: self.files.value[1][0])
        """The context of listeners for gRPC; ALPN selects HTTP/2."""
        self.http_context: ssl.SSLContext = _NewestContext(lambda: self.files.value[1][1])
        """The context of listeners for HTTP/1.1."""

    def _contexts(self) -> tuple[ssl.SSLContext, ...]:
        http = ssl.CERT_OPTIONAL if self._http_optional else ssl.CERT_REQUIRED
        return self._context("h2", ssl.CERT_REQUIRED), self._context("http/1.1", http)

    def _context(self, protocol: str, verify: ssl.VerifyMode) -> ssl.SSLContext:
        context = self._paths.context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols([protocol])
        context.verify_mode = verify if self.asks else ssl.CERT_NONE
        return context


class ClientTls(_Tls):
    """The TLS of connections to others, whose authority is `paths.ca`, or else any of the system's."""

    @property
    def context(self) -> ssl.SSLContext:
        return self.files.value[1][0]

    def _contexts(self) -> tuple[ssl.SSLContext, ...]:
        return (self._paths.context(ssl.Purpose.SERVER_AUTH),)


class _NewestContext(ssl.SSLContext):
    """Makes each connection with the newest context; has no certificate of its own."""

    newest: Callable[[], ssl.SSLContext]

    def __new__(cls, newest: Callable[[], ssl.SSLContext]) -> Self:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context.newest = newest
        return context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Return a connection of the newest context; asyncio and uvloop call this for each one."""
        return self.newest().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self.newest().wrap_socket(*args, **options)
