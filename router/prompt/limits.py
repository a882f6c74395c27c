"""Limits of a request's parts; a request that exceeds one is refused as a whole.

Names and lists beside the prompt have limits too, since they are kept for a while, in caches and among
the last picks, and every name is compared.

Prompts are truncated as vLLM 0.32 does (`vllm/renderers/params.py`). Without `truncation_side`, vLLM's
tokenizer cuts a text: it keeps the special tokens and the last of the others. Token ids, and any prompt
for which a side is named, are cut with their special tokens.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

from warmpath.indexer.keys.key import TOKEN_BYTES
from warmpath.router.prompt.bad_request import BadRequestError

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
    """The time left of `seconds` from the creation of this object, by the running loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds

    def seconds(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._end - self._loop.time())


Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Truncation:
    """The request to keep at most `tokens` of a prompt's tokens."""

    tokens: int
    side: Side | None = None
    """The side that is cut off; None: the left, as vLLM's tokenizers do."""


class NoRoomError(Exception):
    """The special tokens alone take all the tokens that may be kept, or more."""


def cut(ids: bytes, truncation: Truncation) -> bytes:
    """Return the packed token ids that are kept."""
    size = truncation.tokens * TOKEN_BYTES
    return ids[:size] if truncation.side == "right" else ids[-size:]


def cut_between(ids: bytes, plain: bytes, truncation: Truncation) -> bytes:
    """Return the packed ids that are kept if the special tokens around the `plain` ones stay.

    Raises NoRoomError, and ValueError if the special tokens are not around the others.
    """
    places = range(0, len(ids) - len(plain) + 1, TOKEN_BYTES)
    begin = next((at for at in places if ids.startswith(plain, at)), None)
    if begin is None:
        raise ValueError("the special tokens are not around the others")
    end = begin + len(plain)
    room = truncation.tokens - (len(ids) - len(plain)) // TOKEN_BYTES
    if room <= 0:
        raise NoRoomError
    return ids[:begin] + cut(plain, Truncation(room, truncation.side)) + ids[end:]
