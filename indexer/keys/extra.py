"""The extra of a block: everything on which it depends beside its tokens, in one canonical byte form.

Different images have equal placeholder token ids, so the items that overlap a block enter its key;
embeddings replace tokens altogether. Engines write these things in several shapes. All of them, and a
request's own list, are brought into this form, in which types are tagged and lengths prefixed so that no
two different lists are equal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct

from warmpath.indexer.keys.key import pack_tokens

_LENGTH = Struct("<I")
_PLACE = Struct("<cq")


@dataclass(frozen=True, slots=True)
class Item:
    """One multimodal item: content hash, position and number of its placeholder tokens."""

    hash: str
    offset: int
    length: int


def pack_extra(items: Iterable[tuple[str, int | None]], embeds: Iterable[bytes] = ()) -> bytes:
    """Return the canonical form of a block's extras; empty where there are none.

    `items` are (content hash, offset of the item's start from the block's start), the offset None
    where the engine does not say it; `embeds` are digests of the rows that replace tokens.
    """
    parts: list[bytes] = []
    for name, offset in items:
        raw = name.encode()
        parts += (b"m", _LENGTH.pack(len(raw)), raw)
        parts.append(b"-" if offset is None else _PLACE.pack(b"+", offset))
    parts += [b"e" + _LENGTH.pack(len(digest)) + digest for digest in embeds]
    return b"".join(parts)


def next_token(token: int) -> bytes:
    """Return the extra of a block that is reused only where this token follows it.

    SGLang and vLLM have such blocks under EAGLE (`indexer.engines.cache_groups.Lookahead`). Raises
    ValueError where `token` is not a token id.
    """
    return b"n" + pack_tokens((token,))


def extras_of(
    items: Sequence[Item], block_size: int, blocks: int, *, after: int = 0
) -> list[bytes | None] | None:
    """Return each block's extra for a prompt with these items, or None where there are no items.

    An item counts in every block that its placeholder range overlaps, or that has some of it among the
    first `after` tokens behind the block.
    """
    if not items:
        return None
    overlaps: list[list[tuple[str, int | None]]] = [[] for _ in range(blocks)]
    for item in sorted(items, key=lambda item: item.offset):
        first = max(0, item.offset - after) // block_size
        last = (item.offset + item.length - 1) // block_size
        for block in range(first, min(last + 1, blocks)):
            overlaps[block].append((item.hash, item.offset - block * block_size))
    return [pack_extra(found) or None for found in overlaps]
