"""Keys: 64-bit hashes, each of a block and everything before it.

    key[-1] = root(keyspace)
    key[i]  = xxh64(tokens of block i as little-endian uint32, seed = s)
    s       = key[i-1], or xxh64(extra[i], seed = key[i-1]) where the block has an extra

Two prompts have an equal key at depth i iff (unless 64-bit hashes collide) they are in one keyspace
and agree in every token and extra up to there. The root comes from a keyed cryptographic hash, so a
tenant cannot construct a salt that leads into another's chain; the chain itself is not proof against
someone who can choose tokens freely within one keyspace, where a collision costs a wrong estimate and
discloses nothing.

Words (keys and names) are packed as 8 bytes each, token ids as 4, all little-endian.
"""

import hashlib
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct

import msgspec
import xxhash

WORD_BYTES = 8


def _little_endian(numbers: "array[int]") -> "array[int]":
    """Return an array, changed in place from the machine's order of bytes to little-endian, or back."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def pack_words(words: Iterable[int]) -> bytes:
    """Return words packed."""
    return _little_endian(array("Q", words)).tobytes()


def words_of(packed: bytes) -> "array[int]":
    """Return packed words as an array. Raises ValueError where the length is not a multiple of 8."""
    words = array("Q", packed)
    return words if sys.byteorder == "little" else _little_endian(words)


def unpack_words(packed: bytes) -> list[int]:
    """Return packed words as a list. Raises ValueError where the length is not a multiple of 8."""
    return words_of(packed).tolist()


def common_words(one: bytes, other: bytes) -> int:
    """Return with how many equal packed words both begin."""
    if other.startswith(one):
        return len(one) // WORD_BYTES
    alike, unlike = 0, min(len(one), len(other)) // WORD_BYTES + 1
    while unlike - alike > 1:
        middle = (alike + unlike) // 2
        part = slice(alike * WORD_BYTES, middle * WORD_BYTES)
        if one[part] == other[part]:
            alike = middle
        else:
            unlike = middle
    return alike


TOKEN_BYTES = 4


def pack_tokens(ids: Iterable[int]) -> bytes:
    """Pack token ids. Raises ValueError where one is not an unsigned 32-bit integer."""
    try:
        return _little_endian(array("I", ids)).tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError("a token id must be an unsigned 32-bit integer") from error


def unpack_tokens(packed: bytes) -> "array[int]":
    """Return packed token ids as an array. Raises ValueError where the length is not a multiple of 4."""
    return _little_endian(array("I", packed))


@dataclass(frozen=True, slots=True)
class Keyspace:
    """The seed of a chain of keys. Keys of two keyspaces never match.

    `block_size` is in tokens; `lora`, `cache_salt` and `extra_key` are empty for none; `hash_seed` is
    the deployment's own and must be equal wherever keys are compared.
    """

    model: str
    block_size: int
    lora: str = ""
    cache_salt: str = ""
    hash_seed: str = ""
    extra_key: str = ""

    def root(self) -> int:
        """Return the key that the first block is chained to."""
        digest = hashlib.blake2b(
            key=hashlib.blake2b(self.hash_seed.encode(), digest_size=32).digest(),
            digest_size=8,
            person=b"warmpath/root/1",
        )
        named = (self.model, self.lora, self.cache_salt)
        for part in (*named, self.extra_key) if self.extra_key else named:
            raw = part.encode()
            digest.update(len(raw).to_bytes(4, "little") + raw)
        digest.update(self.block_size.to_bytes(4, "little"))
        return int.from_bytes(digest.digest(), "little")


class Chain(msgspec.Struct, frozen=True, gc=False):
    """A prompt's blocks, with everything from which their keys are made when they are asked for.

    `tokens` are packed ids of at least `blocks` full blocks; `extras` holds one entry a block (what
    its key covers beside tokens, such as images: `pack_extra`), or nothing if none has any.
    """

    root: int
    tokens: bytes
    block_size: int
    blocks: int
    extras: Sequence[bytes | None] = ()
    made: bytes = b""
    """The keys, packed (`indexer.keys.key`), if they were made before; else empty."""

    def keys(self) -> list[int]:
        if self.made:
            return unpack_words(self.made)
        return chain(
            self.root,
            self.tokens[: self.blocks * self.block_size * TOKEN_BYTES],
            self.block_size,
            self.extras,
        )


def fingerprint(model: str, hash_seed: str) -> str:
    """Return a text that is equal in two processes exactly where their keys can match."""
    root = Keyspace(model=model, block_size=0, hash_seed=hash_seed).root()
    return f"1-{root:016x}"


def chain(
    parent: int, tokens: bytes, block_size: int, extras: Sequence[bytes | None] | None = None
) -> list[int]:
    """Return the keys of the full blocks in `tokens`, chained to `parent`.

    `tokens` are packed ids; tokens after the last full block have no key. `extras` holds one entry a
    block; blocks past its end have no extra.
    """
    xxh64 = xxhash.xxh64_intdigest
    step = block_size * TOKEN_BYTES
    view = memoryview(tokens)
    keys = []
    key = parent
    if not extras or not any(extras):
        for start in range(0, len(tokens) - step + 1, step):
            key = xxh64(view[start : start + step], key)
            keys.append(key)
        return keys
    for index, start in enumerate(range(0, len(tokens) - step + 1, step)):
        extra = extras[index] if index < len(extras) else None
        if extra:
            key = xxh64(extra, key)
        key = xxh64(view[start : start + step], key)
        keys.append(key)
    return keys


_LENGTH = Struct("<I")
_PLACE = Struct("<cq")


@dataclass(frozen=True, slots=True)
class Item:
    """One multimodal item: content hash, position and number of its placeholder tokens."""

    hash: str
    offset: int
    length: int


def pack_extra(items: Iterable[tuple[str, int | None]], embeds: Iterable[bytes] = ()) -> bytes:
    """Return a block's extra: all on which it depends beside its tokens; empty where there is nothing.

    Different images have equal placeholder token ids, so the items that overlap a block enter its key;
    embeddings replace tokens altogether. Engines write these things in several shapes. In this canonical
    form types are tagged and lengths prefixed, so that no two different lists are equal.

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
