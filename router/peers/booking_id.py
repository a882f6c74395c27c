"""Booking ids: chosen by the caller of Pick, or made by the router, with the router's name in it."""

import re
import secrets
from collections.abc import Iterator

_FORM = re.compile(r"([0-9a-f]{12})-[0-9a-f]{16}")
_ROUTER = re.compile(r"[0-9a-f]{12}")
_PRINTABLE = re.compile(r"[!-~]*")

MOST_BYTES = 128
DRAWN = 256
"""Ids of which the random ends are drawn at once."""


def new_router() -> str:
    """Return a random name for this process as a router."""
    return secrets.token_hex(6)


def is_router(name: str) -> bool:
    """Return whether a name has the form of a router's name."""
    return _ROUTER.fullmatch(name) is not None


def new_id(router: str) -> str:
    """Return a new booking id of a router."""
    return f"{router}-{next(_tails)}"


def _new_tails() -> Iterator[str]:
    """Yield random ends of ids; the system is asked for many at once."""
    while True:
        drawn = secrets.token_hex(8 * DRAWN)
        for at in range(0, len(drawn), 16):
            yield drawn[at : at + 16]


_tails = _new_tails()


def problem_of(name: str) -> str:
    """Return why a booking id is not valid; empty if it is valid."""
    if len(name.encode()) > MOST_BYTES:
        return f"is longer than {MOST_BYTES} bytes"
    if _PRINTABLE.fullmatch(name) is None:
        return "has a character that is not printable ASCII, or a space"
    return ""


def router_of(booking: str) -> str:
    """Return the router that made a booking id; empty if a caller chose it."""
    found = _FORM.fullmatch(booking)
    return found[1] if found else ""
