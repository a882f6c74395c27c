"""Truncates prompts as vLLM 0.32 does (`vllm/renderers/params.py`).

Without `truncation_side`, vLLM's tokenizer cuts a text: it keeps the special tokens and the last of the
others. Token ids, and any prompt for which a side is named, are cut with their special tokens.
"""

from dataclasses import dataclass
from typing import Literal

from warmpath.indexer.keys.token import TOKEN_BYTES

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
