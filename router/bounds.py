"""How much a caller may say, beside the prompt itself: a request that says more is refused whole.

What a caller says is kept for a while, in caches and among the last picks, and every name is compared.
"""

from collections.abc import Sized

from router.body import BadPromptError

MOST_NAME_BYTES = 1024
"""Of a model's, an adapter's, a pod's or an item's name, of a salt and of an extra key."""
MOST_PODS = 4096
"""Pods that are named in one request."""
MOST_LOADS = 4096
"""Ranks of which one request says the load."""
MOST_ITEMS = 4096
"""Multimodal items of one prompt."""


def check_name(field: str, name: str, most: int = MOST_NAME_BYTES) -> None:
    """Raise BadPromptError where a name is too long."""
    # No character takes less than a byte.
    size = len(name) if len(name) > most else len(name.encode())
    if size > most:
        raise BadPromptError(field, f"is longer than {most} bytes")


def check_number(field: str, things: Sized, most: int) -> None:
    """Raise BadPromptError where there are too many of some thing."""
    if len(things) > most:
        raise BadPromptError(field, f"has {len(things)} entries, of at most {most}")
