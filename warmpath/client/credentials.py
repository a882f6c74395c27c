"""A client's certificate, token and trusted authorities, from files that are read again on a change.

Also checks the router's address: gRPC's library takes any text, cuts a port that is too large to 16
bits, and asks DNS for a URL.
"""

import os
import threading
from pathlib import Path

import grpc

from warmpath.client.unanswered import ARGUMENTS, unanswered
from warmpath.process.address import is_host_port, is_loopback
from warmpath.process.grpc_tls import channel_credentials
from warmpath.process.reread import LOOK_SECONDS, Reread, TokenError, read_token, token_of
from warmpath.process.tls import ClientTls, TlsFilesError, TlsPaths

EXAMPLE = "127.0.0.1:7400"
RESOLVED = ("dns", "ipv4", "ipv6")
"""Schemes of gRPC's whose address ends with host:port; the last two take several, with commas."""
OTHERS = ("unix:", "unix-abstract:", "vsock:", "xds:")
"""Beginnings of gRPC's names that have no port, or one of their own form."""


def problem_of_target(target: object) -> str:
    """Return why a text cannot be a router's address; empty if it can."""
    if isinstance(target, str) and _is_address(target):
        return ""
    return f"{target!r} is not HOST:PORT, such as {EXAMPLE}, nor unix:/PATH"


def _is_address(target: str) -> bool:
    if target.startswith(OTHERS):
        return True
    scheme, colon, rest = target.partition(":")
    addresses = [target]
    if colon and scheme in RESOLVED:
        # The part between // and / is the DNS server to ask.
        path = rest.partition("//")[2].partition("/")[2] if rest.startswith("//") else rest
        addresses = [path] if scheme == "dns" else path.split(",")
    return all(is_host_port(one) and not one.startswith(":") for one in addresses)


class SettingError(ValueError):
    """A client's setting cannot be used, or does not fit another one.

    `argument` names the one at fault: `target`, `model`, `timeout`, `retry`, `token_file`, `tls`,
    `tls.ca`, `tls.cert` or `tls.key`.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument
        self.problem = problem


class Credentials:
    """The credentials of one client. Any thread may use them.

    Without `tls` the connection is in plain text, on which a token is sent to this machine only. Without
    `tls.ca` the system's authorities are trusted. Raises SettingError.
    """

    def __init__(self, target: str, tls: TlsPaths | None, token_file: Path | str | None) -> None:
        if problem := problem_of_target(target):
            raise SettingError("target", problem)
        if not isinstance(tls, TlsPaths | None):
            raise SettingError("tls", f"is of type {type(tls).__name__}, not TlsPaths")
        if not isinstance(token_file, os.PathLike | str | None):
            raise SettingError("token_file", f"is of type {type(token_file).__name__}, not a path")
        self._target, self._has_cert = target, bool(tls and tls.cert)
        self._tls = None if tls is None else _client_tls(tls)
        self._newest = channel_credentials(self._tls) if self._tls else None
        if token_file is not None and tls is None and not is_loopback(target):
            raise SettingError("token_file", f"would go to {target} in plain text, without TLS")
        self._token = None if token_file is None else _token(Path(token_file))
        self._lock = threading.Lock()
        self._looked = 0.0

    def look(self, now: float) -> None:
        """Read the files again, unless that was done less than a second ago."""
        if now - self._looked < LOOK_SECONDS or not self._lock.acquire(blocking=False):
            return
        try:
            self._looked = now
            for files in (self._tls and self._tls.files, self._token):
                if files:
                    files.look()
        finally:
            self._lock.release()

    @property
    def of_channel(self) -> grpc.ChannelCredentials | None:
        """The credentials of the next channel, one object until a file changes; None: plain text."""
        return self._newest() if self._newest else None

    def hint(self, code: str, text: str) -> str:
        """Return what to do if no router has answered, by a status's name and text; else empty."""
        return unanswered(
            code, text, ARGUMENTS, asked=self._target,
            has_tls=self._tls is not None, has_cert=self._has_cert,
        )  # fmt: skip

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token.value}"),) if self._token else ()


def _client_tls(paths: TlsPaths) -> ClientTls:
    if bool(paths.cert) != bool(paths.key):
        raise SettingError("tls.cert", "needs a key, and a key a cert: give both or none")
    try:
        return ClientTls("the router", paths)
    except TlsFilesError as error:
        raise SettingError(f"tls.{error.part}", error.problem) from error


def _token(path: Path) -> Reread[str]:
    try:
        read_token(path)
        return Reread("the token", [path], lambda contents: token_of(contents[0]))
    except (OSError, TokenError) as error:
        raise SettingError("token_file", str(error)) from None
