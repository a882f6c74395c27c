"""Commands for Redis, and the Protocol of clients that send them: the seam to the sockets."""

from collections.abc import Sequence
from dataclasses import dataclass
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
