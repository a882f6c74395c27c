"""What the engine finds out about a model's chat template, and reads requests by."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template does with a few chats that try it out."""

    wants_system_first: bool
    """It refuses a system message behind others; vLLM then merges all of them into the first."""
    heeds_no_effort: bool
    """It writes another prompt for the reasoning effort `none` than for all others."""
    writes_calls_as_given: bool
    """It writes a tool's call with its fields in the order in which they are given."""


TraitsOf: TypeAlias = Callable[[str], Awaitable[TemplateTraits | None]]
"""Returns the traits of a model's template; None if the template is not known or cannot be tried out."""


async def no_traits(_: str) -> TemplateTraits | None:
    """Return that no template is known."""
    return None
