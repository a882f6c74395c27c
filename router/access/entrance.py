"""The protection of a router's listeners: their TLS, and who may call.

Callers are known by token or by the names in their certificate. A gRPC call is refused before its
message is read.
"""

import hashlib
import hmac
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import grpc

from warmpath.h2grpc.metadata import address_of
from warmpath.h2grpc.method import Method, Refusal
from warmpath.process.reread import Reread, TokenError, read_token, token_of
from warmpath.process.tls import ServerTls
from warmpath.proto.errors import Reason
from warmpath.router.config.check import exposed
from warmpath.router.config.files import server_tls
from warmpath.router.config.schema import ClientSpec, Config, Right
from warmpath.router.metrics.calls import Metrics
from warmpath.router.transport.call import Call, refused

log = logging.getLogger(__name__)

SCHEME = "bearer"
HEADER = "authorization"
CODES = {
    "unknown": (grpc.StatusCode.UNAUTHENTICATED, Reason.UNKNOWN_CALLER),
    "role": (grpc.StatusCode.PERMISSION_DENIED, Reason.NO_ROLE),
}

ROUTER = "/warmpath.v1.Router/"
PLAIN_PICK = "/pick"
"""The beginning of the paths of plain calls (`router.endpoint_picker.plain_calls`)."""

OPEN = ("/grpc.health.v1.Health/", "/healthz", "/readyz")
"""Beginnings of the methods and paths that are open to anybody: the router's health."""

ROLES: dict[str, Right] = {
    f"{ROUTER}Score": "score",
    f"{ROUTER}ScoreStream": "score",
    f"{ROUTER}Pick": "score",
    f"{ROUTER}Report": "score",
    f"{ROUTER}Explain": "score",
    "/indexer.v1.IndexerService/GetPodScores": "score",
    "/query": "score",
    "/overlap_scores": "score",
    f"{ROUTER}ListPods": "read",
    f"{ROUTER}Diagnose": "read",
    f"{ROUTER}ListDecisions": "read",
    "/envoy.service.ext_proc.v3.ExternalProcessor/Process": "score",
    PLAIN_PICK: "score",
    "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs": "score",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "read",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "read",
    "/metrics": "read",
    "/api/v1/Score": "score",
    "/api/v1/Explain": "score",
    "/api/v1/ListPods": "read",
    "/api/v1/ListDecisions": "read",
    "/api/v1/Diagnose": "read",
    "/api/v1/live": "read",
}
"""The role that each call needs, by the full names of gRPC's methods, and by HTTP's paths. A call that
is not listed is refused to everybody."""


class AccessRefusal(NamedTuple):
    """A call is refused; `text` names the role and the method or path, never a token."""

    why: Literal["unknown", "role"]
    """`unknown`: no token or certificate that was shown is a client's; `role`: the client lacks it."""
    text: str


class Entrance:
    """TLS and the access check, for gRPC's methods and for HTTP's paths.

    A caller has the roles of every client of the configuration that it proves to be; without `clients`
    anybody may call. Files are relative to `folder`; `files` are those of certificates and tokens, to be
    kept current (`process.reread`).
    """

    def __init__(
        self, clients: Sequence[ClientSpec], folder: Path, tls: ServerTls | None = None
    ) -> None:
        """Read the tokens. Raises OSError, which names the key."""
        self.tls = tls
        """The listeners' TLS; None: plain connections."""
        self.is_open = not clients
        """Whether anybody may call."""
        self._by_token = [
            (client, _token(client.name, folder / client.token_file))
            for client in clients
            if client.token_file
        ]
        self._by_name = {one.certificate: one for one in clients if not one.token_file}
        tokens = [file for _, file in self._by_token]
        self.files: list[Reread[Any]] = [tls.files, *tokens] if tls is not None else [*tokens]

    def refusal(
        self, asked: str, authorization: Iterable[str], names: Iterable[str]
    ) -> AccessRefusal | None:
        """Return why a caller may not ask for a method or path; None if it may.

        `authorization` are the headers of that name, `names` those in the caller's certificate, which
        has been verified.
        """
        if self.is_open:
            return None
        role = ROLES.get(asked)
        short = asked.rpartition("/")[2]
        known = self._known(authorization, names)
        if not known:
            shown = f"{short} needs the role {role!r}, and the caller has shown neither"
            return AccessRefusal("unknown", f"{shown} a known token nor a known certificate")
        if role is None:
            return AccessRefusal("role", f"no role allows {short}")
        if any(role in client.roles for client in known):
            return None
        who = " and ".join(repr(client.name) for client in known)
        return AccessRefusal("role", f"client {who} lacks the role {role!r}, which {short} needs")

    def classes_of(self, call: Call) -> Collection[str] | None:
        """Return the classes of the queue that a call's sender may name; None: all."""
        if self.is_open:
            return None
        return frozenset(
            name for client in self._known(*_shown_by(call)) for name in client.classes
        )

    def caller_of(self, call: Call) -> str:
        """Return who a call's sender is: the clients that it proves to be, or else its address."""
        names = sorted(client.name for client in self._known(*_shown_by(call)))
        return " ".join(names) or address_of(call.peer)

    def guarded(self, methods: Mapping[str, Method], counts: Metrics) -> Mapping[str, Method]:
        """Return methods, by their names /SERVICE/METHOD, with the check of who calls before them."""

        def refusal_of(name: str, call: Call) -> Refusal | None:
            refusal = self.refusal(name, *_shown_by(call))
            if refusal is None:
                return None
            short = name.rpartition("/")[2]
            counts.kept_out(short, refusal.why)
            log.warning("%s: refused to %s: %s", short, call.peer, refusal.text)
            code, reason = CODES[refusal.why]
            return refused(code, refusal.text, reason)

        return {
            name: method
            if self.is_open or name.startswith(OPEN)
            else replace(method, refusal=partial(refusal_of, name))
            for name, method in methods.items()
        }

    def _known(self, authorization: Iterable[str], names: Iterable[str]) -> list[ClientSpec]:
        """Return the clients that a caller proves to be; the arguments are as for `refusal`."""
        shown = (self._by_name[name] for name in names if name in self._by_name)
        found = {client.name: client for client in shown}
        for header in authorization:
            scheme, _, token = header.partition(" ")
            if scheme.lower() == SCHEME:
                digest = _digest(token.strip())
                # Digests are compared in constant time, so that the time of a refusal reveals
                # nothing of a token.
                for client, kept in self._by_token:
                    if hmac.compare_digest(kept.value, digest):
                        found[client.name] = client
        return list(found.values())


def entrance(config: Config, folder: Path) -> Entrance:
    """Return the entrance of a configuration, whose files are relative to `folder`.

    Log a warning for each listener that other machines reach unprotected. Raises OSError.
    """
    for key, address, lacks in exposed(config):
        log.warning(
            "server.%s: other machines reach %s, which lacks %s (server.insecure)",
            key, address, lacks,
        )  # fmt: skip
    return Entrance(config.clients, folder, server_tls(config.server.tls, folder))


def _shown_by(call: Call) -> tuple[list[str], Sequence[str]]:
    return [str(value) for key, value in call.metadata if key == HEADER], call.names


def _token(name: str, path: Path) -> Reread[bytes]:
    try:
        read_token(path)
        return Reread(f"the token of client {name!r}", [path], partial(_digest_of, path))
    except TokenError as error:
        raise OSError(f"clients: {name!r}: token-file: {error}") from None


def _digest_of(path: Path, contents: Sequence[bytes]) -> bytes:
    try:
        return _digest(token_of(contents[0]))
    except TokenError as error:
        raise TokenError(f"{path} {error}") from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
