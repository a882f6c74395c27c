"""Limits of a request's parts, and the errors by which requests are refused as a whole.

Names and lists beside the prompt have limits too, since they are kept for a while, in caches and among
the last picks, and every name is compared.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from warmpath.indexer.keys.key import Item


class BadRequestError(Exception):
    """A request is refused. `field` names the field at fault; the message has the limit, if any."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def renamed(self, fields: Mapping[str, str]) -> Self:
        """Return the error about the field that `fields` has in place of its own, if any."""
        return type(self)(fields.get(self.field, self.field), self.problem)


class NoTokenizerError(BadRequestError):
    """The request has a text or a chat, and nothing configured can tokenise it for the model."""


MOST_NAME_BYTES = 1024
"""Longest name (of a model, an adapter, a pod or a multimodal item), salt or extra key."""
MOST_SESSION_BYTES = MOST_TENANT_BYTES = 256
"""Longest name of a conversation, and of a tenant."""
MOST_ENTRIES = 4096
"""Most entries of each list in a request: named pods, ranks with a reported load, multimodal items."""


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """The largest accepted prompt."""

    max_prompt_bytes: int
    max_prompt_tokens: int

    def check_tokens(self, field: str, tokens: int) -> None:
        """Raise BadRequestError if a prompt has too many tokens."""
        limit = self.max_prompt_tokens
        if tokens > limit:
            raise BadRequestError(
                field, f"has {tokens} tokens; limits.max-prompt-tokens is {limit}"
            )


def check_name(field: str, name: str, most: int = MOST_NAME_BYTES) -> str:
    """Return a name. Raises BadRequestError if it is too long."""
    # Each character takes at least one byte, so a name of too many characters need not be encoded.
    size = len(name) if len(name) > most else len(name.encode())
    if size > most:
        raise BadRequestError(field, f"is longer than {most} bytes")
    return name


def check_count(field: str, count: int, most: int = MOST_ENTRIES) -> None:
    """Raise BadRequestError if a list has too many entries."""
    if count > most:
        raise BadRequestError(field, f"has more than {most} entries")


class TimeLeft:
    """The time left of `seconds` from the creation of this object; `clock` returns seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def seconds(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._end - self._clock())


def check_item(field: str, item: Item, *, begin: int, tokens: int | None) -> int:
    """Check an item's hash and its placeholder tokens; return the position of the token after them.

    The item before it ends at the position `begin`. `tokens` is the prompt's number of tokens, None
    where it is not known. Raises BadRequestError.
    """
    if not item.hash:
        raise BadRequestError(f"{field}.hash", "is empty")
    check_name(f"{field}.hash", item.hash)
    if item.length < 1:
        raise BadRequestError(
            f"{field}.length", f"is {item.length}; an item has at least one token"
        )
    if item.offset < begin:
        raise BadRequestError(
            f"{field}.offset", f"is {item.offset}; the item before it ends at {begin}"
        )
    end = item.offset + item.length
    if tokens is not None and end > tokens:
        raise BadRequestError(field, f"ends at token {end}; the prompt has {tokens} tokens")
    return end
