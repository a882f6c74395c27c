"""What is wrong where Redis refuses or does not answer, by its error, and what helps."""

import re
from enum import Enum, auto

from warmpath.indexer.shared.redis.command import CommandRefusedError


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
