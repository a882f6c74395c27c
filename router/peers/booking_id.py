"""What reports call a booking: a name that its caller chose, or its router, whose name is in it."""

import re
import secrets

_FORM = re.compile(r"([0-9a-f]{12})-[0-9a-f]{16}")
_ROUTER = re.compile(r"[0-9a-f]{12}")
_PRINTABLE = re.compile(r"[!-~]*")

MOST_BYTES = 128


def new_router() -> str:
    """Return a name for this process as a router; each process of one machine is one of its own."""
    return secrets.token_hex(6)


def is_router(name: str) -> bool:
    """Whether a router can have this name."""
    return _ROUTER.fullmatch(name) is not None


def new_id(router: str) -> str:
    """Return a new booking's name."""
    return f"{router}-{secrets.token_hex(8)}"


def problem_of(name: str) -> str:
    """Return why no booking can have this name; empty where one can."""
    if len(name.encode()) > MOST_BYTES:
        return f"is longer than {MOST_BYTES} bytes"
    if _PRINTABLE.fullmatch(name) is None:
        return "has a character that is not printable ASCII, or a space"
    return ""


def router_of(booking: str) -> str:
    """Return the router that has named a booking so; empty where a caller has."""
    found = _FORM.fullmatch(booking)
    return found[1] if found else ""
