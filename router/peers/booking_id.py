"""Booking ids: chosen by the caller of Pick, or made by the router, with the router's name in it."""

import re
import secrets

_FORM = re.compile(r"([0-9a-f]{12})-[0-9a-f]{16}")
_ROUTER = re.compile(r"[0-9a-f]{12}")
_PRINTABLE = re.compile(r"[!-~]*")

MOST_BYTES = 128


def new_router() -> str:
    """Return a random name for this process as a router."""
    return secrets.token_hex(6)


def is_router(name: str) -> bool:
    """Return whether a name has the form of a router's name."""
    return _ROUTER.fullmatch(name) is not None


def new_id(router: str) -> str:
    """Return a new booking id of a router."""
    return f"{router}-{secrets.token_hex(8)}"


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
