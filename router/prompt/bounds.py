"""How much a caller may say: a request that says more is refused whole.

What a caller says beside the prompt is kept for a while, in caches and among the last picks, and every
name is compared.
"""

from dataclasses import dataclass

from router.prompt.bad_request import BadRequestError

MOST_NAME_BYTES = 1024
"""Of a model's, an adapter's, a pod's or an item's name, of a salt and of an extra key."""
MOST_ENTRIES = 4096
"""Of each list in a request: pods that are named, ranks of which it says the load, multimodal items."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a prompt may have."""

    max_prompt_bytes: int
    max_prompt_tokens: int

    def check_tokens(self, field: str, tokens: int) -> None:
        """Raise BadRequestError where a prompt has too many tokens."""
        limit = self.max_prompt_tokens
        if tokens > limit:
            raise BadRequestError(
                field, f"has {tokens} tokens; limits.max-prompt-tokens is {limit}"
            )


def check_name(field: str, name: str, most: int = MOST_NAME_BYTES) -> str:
    """Return a name. Raises BadRequestError where it is too long."""
    # No character takes less than a byte.
    size = len(name) if len(name) > most else len(name.encode())
    if size > most:
        raise BadRequestError(field, f"is longer than {most} bytes")
    return name


def check_count(field: str, count: int, most: int = MOST_ENTRIES) -> None:
    """Raise BadRequestError where something is there too often."""
    if count > most:
        raise BadRequestError(field, f"has more than {most} entries")
