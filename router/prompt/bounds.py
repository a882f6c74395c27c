"""How much a caller may say, beside the prompt itself: a request that says more is refused whole.

What a caller says is kept for a while, in caches and among the last picks, and every name is compared.
"""

from router.prompt.bad_request import BadRequestError

MOST_NAME_BYTES = 1024
"""Of a model's, an adapter's, a pod's or an item's name, of a salt and of an extra key."""
MOST_ENTRIES = 4096
"""Of each list in a request: pods that are named, ranks of which it says the load, multimodal items."""


def check_name(field: str, name: str, most: int = MOST_NAME_BYTES) -> None:
    """Raise BadRequestError where a name is too long."""
    # No character takes less than a byte.
    size = len(name) if len(name) > most else len(name.encode())
    if size > most:
        raise BadRequestError(field, f"is longer than {most} bytes")


def check_count(field: str, count: int, most: int = MOST_ENTRIES) -> None:
    """Raise BadRequestError where something is there too often."""
    if count > most:
        raise BadRequestError(field, f"has more than {most} entries")
