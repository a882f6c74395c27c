"""Lets a call that waits for long give up the room that its message takes (`router.api.intake`)."""

from collections.abc import Callable
from contextvars import ContextVar

GIVE_ROOM: ContextVar[Callable[[], None]] = ContextVar("GIVE_ROOM")
"""Frees the room of the current call's message; its bytes must be counted elsewhere from then on."""
