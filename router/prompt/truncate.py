"""A prompt's tokens, and those that its engine keeps of them.

Prompts are truncated as vLLM 0.32 does (`vllm/renderers/params.py`). Without `truncation_side`, vLLM's
tokenizer cuts a text: it keeps the special tokens and the last of the others. Token ids, and any prompt
for which a side is named, are cut with their special tokens.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from warmpath.indexer.keys.key import TOKEN_BYTES
from warmpath.prefixstore.pool import KeyMemo


class Ids(NamedTuple):
    """A prompt's tokens."""

    packed: bytes
    covered_chars: int = 0
    """Characters of the text that the tokens cover; 0 if the router has no text."""
    memo: KeyMemo | None = None
    unread: int = 0
    """Estimated tokens of the rest of the text, if the time was over before its end."""


CHARS_PER_TOKEN = 4
"""About the average of English text; a text that was not tokenised is estimated by its length."""


Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Truncation:
    """The request to keep at most `tokens` of a prompt's tokens."""

    tokens: int
    side: Side | None = None
    """The side that is cut off; None: the left, as vLLM's tokenizers do."""


def cut(ids: bytes, truncation: Truncation) -> bytes:
    """Return the packed token ids that are kept."""
    size = truncation.tokens * TOKEN_BYTES
    return ids[:size] if truncation.side == "right" else ids[-size:]


def cut_between(ids: bytes, plain: bytes, truncation: Truncation) -> bytes:
    """Return the packed ids that are kept if the special tokens around the `plain` ones stay.

    Return no id if the special tokens alone are as many as may be kept, or more. Raises ValueError if
    they are not around the others.
    """
    places = range(0, len(ids) - len(plain) + 1, TOKEN_BYTES)
    begin = next((at for at in places if ids.startswith(plain, at)), None)
    if begin is None:
        raise ValueError("the special tokens are not around the others")
    end = begin + len(plain)
    room = truncation.tokens - (len(ids) - len(plain)) // TOKEN_BYTES
    if room <= 0:
        return b""
    return ids[:begin] + cut(plain, Truncation(room, truncation.side)) + ids[end:]


def truncated(ids: Ids, truncation: Truncation | None) -> Ids:
    """Return a prompt's tokens, truncated as by the engine; `truncation` None: all of them."""
    if truncation is None or (not ids.unread and fits(ids.packed, truncation)):
        return ids
    if not ids.unread:
        return Ids(cut(ids.packed, truncation), ids.covered_chars)
    # The prompt's last tokens are not known, so neither are those that the engine would keep.
    most = min(len(ids.packed) // TOKEN_BYTES + ids.unread, truncation.tokens)
    return Ids(b"", unread=most)


def fits(packed: bytes, truncation: Truncation) -> bool:
    """Return whether no packed token id is cut off."""
    return len(packed) <= truncation.tokens * TOKEN_BYTES


def estimate(text: str, covered_chars: int = 0) -> int:
    """Return the estimated number of tokens of a text after its first `covered_chars` characters."""
    return -(-(len(text) - covered_chars) // CHARS_PER_TOKEN)
