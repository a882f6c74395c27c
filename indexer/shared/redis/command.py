"""What is asked of Redis, and who asks: the seam between what is said and the sockets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script. All keys it touches have one hash tag and are given as keys."""

    name: str
    source: str


@cache
def script(name: str) -> Script:
    """Return the script in the file of that name beside this one (`lua/NAME.lua`)."""
    path = Path(__file__).parents[1] / "lua" / f"{name}.lua"
    return Script(name, path.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `words[1]` is its key, which says where it goes in a cluster."""

    words: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()


class RefusedError(Exception):
    """Redis answered with an error: the message is its own, cut to a line."""


class UnreachableError(Exception):
    """No answer came: it is not known whether the command was carried out."""


Reply = Any
"""What a command returns: bytes, int, None, lists of these; or a RefusedError or UnreachableError."""


def good(reply: Reply) -> Reply:
    """Return a reply. Raises it where it is an error."""
    if isinstance(reply, RefusedError | UnreachableError):
        raise reply
    return reply


class Redis(Protocol):
    """A deployment's Redis: one server, one that Sentinel names, or a cluster."""

    @property
    def disruptions(self) -> int:
        """How often so far a node was lost, or was reached for the first time or anew.

        What was written may have been lost with it; who reads or writes has to make sure of it.
        """

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        """Return the reply to each, in order; what fails has its error in its place.

        Pipelined: one round trip for each node. All is over within `timeout` seconds.
        """

    async def close(self) -> None:
        """Close every connection."""
