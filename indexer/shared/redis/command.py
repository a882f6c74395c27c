"""Commands for Redis, the Protocol of clients that send them (the seam to the sockets), and faults."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import Any, Protocol

Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script. All keys that it uses are passed to it, and are on one node (have one hash tag)."""

    name: str
    source: str


@cache
def script(name: str) -> Script:
    """Return the script in the file of that name (`indexer/shared/lua/NAME.lua`)."""
    path = Path(__file__).parents[1] / "lua" / f"{name}.lua"
    return Script(name, path.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `words[1]` is its key, which says where it goes in a cluster."""

    words: tuple[Argument, ...]

    @property
    def keys(self) -> tuple[Argument, ...]:
        return self.words[1:2]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()


class CommandFailedError(Exception):
    """A command has no reply that says what was asked: CommandRefusedError or UnreachableError."""


class CommandRefusedError(CommandFailedError):
    """Redis answered with an error, whose text is part of the message."""


class UnreachableError(CommandFailedError):
    """No answer came: it is not known whether the command was carried out."""


Reply = Any
"""A command's reply: bytes, int, None, lists of these; or a CommandRefusedError or UnreachableError."""


def good(reply: Reply) -> Reply:
    """Return a reply, or raise it where it is an error."""
    if isinstance(reply, CommandFailedError):
        raise reply
    return reply


class Redis(Protocol):
    """A deployment's Redis: one server, one that Sentinel names, or a cluster."""

    @property
    def disruptions(self) -> int:
        """How often so far a node was lost or connected to, keys moved, or a node was unable to read.

        A node is unable if it refuses (BUSY, LOADING), also where a later attempt succeeds. Each time,
        earlier writes may have been lost; readers and writers have to make sure of them.
        """

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        """Return the reply to each command, in order; for one that fails its error.

        Pipelined: one round trip for each node. Returns within `timeout` seconds.
        """

    async def close(self) -> None:
        """Close every connection."""


class Fault(Enum):
    """What is wrong where Redis refuses or does not answer."""

    SILENCE = auto()
    """Redis does not answer."""
    NO_PASSWORD_GIVEN = auto()
    NO_PASSWORD_WANTED = auto()
    LOGIN = auto()
    """Redis refuses the user or the password."""
    RIGHT = auto()
    """Redis' ACL refuses the user a command or a key."""
    KIND = auto()
    """The server is of another kind than the URL's scheme says."""
    OTHER = auto()
    """Redis refuses a command for another reason."""


TLS_HINT = "does the server use TLS?"
"""The hint where a server does not answer as one with, or without, TLS would."""
NO_CONNECTION = "no connection within"
"""The words of an error where a connection takes too long."""
SLOW_TLS_HINT = "it does not answer, or does not use TLS: then the URL begins with redis"
"""The hint where the first connection takes too long under TLS: a server without TLS waits for more."""

_WORDS = (
    # Redis closes a connection over which a script comes before a password.
    (
        r"NOAUTH|unauthenticated (multi)?bulk",
        Fault.NO_PASSWORD_GIVEN,
        "this Redis wants a password: give it in {named}password-file",
    ),
    (
        "without any password configured",
        Fault.NO_PASSWORD_WANTED,
        "this Redis has no password: leave {named}password-file out",
    ),
    ("WRONGPASS", Fault.LOGIN, "look at {named}user and {named}password-file"),
    ("NOPERM|The user executing the script", Fault.RIGHT, ""),
    (
        "cluster support disabled",
        Fault.KIND,
        "this Redis belongs to no cluster: its URL begins with redis:// or redis-sentinel://",
    ),
    (
        "unknown command .SENTINEL",
        Fault.KIND,
        "this Redis is no sentinel: its URL begins with redis:// or redis-cluster://",
    ),
    ("belongs to a cluster", Fault.KIND, ""),
)
"""Redis' words for a fault (and ours for the last), and what helps where they do not say it.

`{named}` stands for the prefix of settings' names (`address.parse`)."""


OUT_OF_MEMORY = "OOM"
"""The code with which Redis refuses writes where it is full."""


def _known(problem: str) -> tuple[Fault, str] | None:
    """Return the fault that a problem's words are of, and what helps; None for other words."""
    found = ((fault, hint) for words, fault, hint in _WORDS if re.search(words, problem))
    return next(found, None)


def fault_of(error: Exception) -> Fault:
    """Return what is wrong, by the error that came instead of a reply."""
    if known := _known(str(error)):
        return known[0]
    return Fault.OTHER if isinstance(error, CommandRefusedError) else Fault.SILENCE


def is_explained(problem: str) -> bool:
    """Return whether a problem's text says what helps, in Redis' words or by a hint of ours."""
    return TLS_HINT in problem or _known(problem) is not None


def hint_of(error: Exception, named: str) -> str:
    """Return advice for an error of Redis; empty if the error says enough, or if none is known.

    `named` is as in `address.parse`.
    """
    known = _known(str(error))
    return known[1].format(named=named) if known else ""
