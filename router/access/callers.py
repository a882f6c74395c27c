"""Knows callers by token or by the names in their certificate, and refuses those without the role."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from warmpath.process.reread import Reread, TokenError, read_token, token_of
from warmpath.router.access.roles import ROLES
from warmpath.router.config.schema import ClientSpec

SCHEME = "bearer"


class RefusalKind(Enum):
    """The kind of a refusal."""

    UNKNOWN = "unknown"
    """Neither a token nor a certificate that was shown is a client's."""
    ROLE = "role"
    """The client lacks the role."""


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """A call is refused; `text` names the role and what was asked, never a token."""

    why: RefusalKind
    text: str


class Callers:
    """The clients of a configuration. A caller has the roles of every client that it proves to be.

    Files are relative to `folder`; `files` are those of tokens, to be kept current
    (`process.reread`).
    """

    def __init__(self, clients: Sequence[ClientSpec], folder: Path) -> None:
        """Read the tokens. Raises OSError, which names the key."""
        self._by_token: list[tuple[ClientSpec, Reread[bytes]]] = []
        self._by_name: dict[str, ClientSpec] = {}
        for client in clients:
            if client.token_file:
                path = folder / client.token_file
                self._by_token.append((client, _token(client.name, path)))
            else:
                self._by_name[client.certificate] = client

    @property
    def files(self) -> list[Reread[bytes]]:
        """The files of tokens."""
        return [files for _, files in self._by_token]

    def refusal(
        self, asked: str, authorization: Iterable[str], names: Iterable[str]
    ) -> AccessRefusal | None:
        """Return why a caller may not ask for a method or path; None if it may.

        `authorization` are the headers of that name, `names` those in the caller's certificate, which
        has been verified.
        """
        role = ROLES.get(asked)
        short = asked.rpartition("/")[2]
        known = self.known(authorization, names)
        if not known:
            shown = f"{short} needs the role {role!r}, and the caller has shown neither"
            return AccessRefusal(
                RefusalKind.UNKNOWN, f"{shown} a known token nor a known certificate"
            )
        if role is None:
            return AccessRefusal(RefusalKind.ROLE, f"no role allows {short}")
        if any(role in client.roles for client in known):
            return None
        who = " and ".join(repr(client.name) for client in known)
        return AccessRefusal(
            RefusalKind.ROLE, f"client {who} lacks the role {role!r}, which {short} needs"
        )

    def classes(self, authorization: Iterable[str], names: Iterable[str]) -> frozenset[str]:
        """Return the classes of the queue that a caller may name; the arguments are as for `refusal`."""
        known = self.known(authorization, names)
        return frozenset(name for client in known for name in client.classes)

    def known(self, authorization: Iterable[str], names: Iterable[str]) -> list[ClientSpec]:
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
