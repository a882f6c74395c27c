"""TLS from PEM files, for listeners and for connections out: new handshakes use the newest files.

Connections that are open go on as they are. Each change makes a new `ssl.SSLContext`, since a context
keeps its sessions: a client could resume a session for two hours after its authority was removed.
"""

import contextlib
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from warmpath.process.certificates import validities
from warmpath.process.command_line import in_words
from warmpath.process.reread import Reread, problem_of, read_bytes

log = logging.getLogger(__name__)

CERTIFICATE = b"CERTIFICATE-----", "certificate"
KEY = b"PRIVATE KEY-----", "private key"
"""The end of the lines around such a block of PEM (RFC 7468), and its name."""


class TlsFilesError(OSError):
    """A file cannot be used; `part` is `ca`, `cert` (with its key) or, if it cannot be read, `key`."""

    def __init__(self, part: str, problem: str) -> None:
        super().__init__(problem)
        self.part = part
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the files; empty where there is no file."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, init=False)
class TlsPaths:
    """PEM files: the authority of the other side, our own certificate chain, and its private key."""

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
        """Return the paths that are not None."""
        return [path for path in (self.ca, self.cert, self.key) if path]

    def pem(self, contents: Sequence[bytes]) -> Pem:
        """Return the contents of the files that are `given`."""
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
        """Return which file is no PEM of its kind, which OpenSSL does not say; empty if both are."""
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


def expiries(pem: Pem) -> Iterator[tuple[str, float]]:
    """Yield `ca` and `cert`, where there is such a file, with the Unix time until which it is of use.

    A certificate's chain is as good as the first of it that ends; of several authorities one is enough.
    Certificates that cannot be read are left out.
    """
    for part, content, choose in (("ca", pem.ca, max), ("cert", pem.cert, min)):
        with contextlib.suppress(ValueError):
            if found := validities(content):
                yield part, choose(one.ends for one in found).timestamp()


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
        """The newest contents of the files."""
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
        """For HTTP/2, which ALPN selects."""
        self.http_context: ssl.SSLContext = _NewestContext(lambda: self.files.value[1][1])
        """Of HTTP/1.1."""

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
        """The newest context, for the next connection."""
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
