"""Lets a call that waits for long free the room of its message (`router.calls.intake`)."""

from collections.abc import Callable
from contextvars import ContextVar

GIVE_ROOM: ContextVar[Callable[[], None]] = ContextVar("GIVE_ROOM")
"""Frees the room of the current call's message; its bytes must be counted elsewhere from then on."""
