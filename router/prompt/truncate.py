"""Prompts that the engine is to cut, as vLLM 0.32 cuts them (`vllm/renderers/params.py`).

Without `truncation_side` a text is cut by the tokenizer, which keeps its special tokens and the last of
the others; token ids, and everything where a side is named, are cut as they are.
"""

from dataclasses import dataclass
from typing import Literal

from indexer.keys.token import TOKEN_BYTES

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Truncation:
    """What is left of a prompt's tokens: at most so many."""

    tokens: int
    side: Side | None = None
    """Where it is cut; None: where vLLM's tokenizers cut, which is on the left."""


class NoRoomError(Exception):
    """The special tokens alone take more than what is to be left."""


def cut(ids: bytes, truncation: Truncation) -> bytes:
    """Return what is left of packed token ids."""
    size = truncation.tokens * TOKEN_BYTES
    return ids[:size] if truncation.side == "right" else ids[-size:]


def cut_between(ids: bytes, plain: bytes, truncation: Truncation) -> bytes:
    """Return what is left of packed ids if the special tokens around the `plain` ones stay.

    Raises NoRoomError, and ValueError where the special tokens are not around the others.
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
