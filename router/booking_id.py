"""What reports call a booking: its name says which router has it."""

import re
import secrets

_FORM = re.compile(r"([0-9a-f]{12})-[0-9a-f]{16}")
_ROUTER = re.compile(r"[0-9a-f]{12}")


def new_router() -> str:
    """Return a name for this process as a router; each process of one machine is one of its own."""
    return secrets.token_hex(6)


def is_router(name: str) -> bool:
    """Whether a router can have this name."""
    return _ROUTER.fullmatch(name) is not None


def new_id(router: str) -> str:
    """Return a new booking's name."""
    return f"{router}-{secrets.token_hex(8)}"


def router_of(booking: str) -> str:
    """Return the router that has named a booking so; empty where none has."""
    found = _FORM.fullmatch(booking)
    return found[1] if found else ""
