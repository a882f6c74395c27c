"""The key of a cached block: its tokens, and everything else that its content depends on.

Source: TensorRT-LLM's `BlockKey` (`batch_manager/blockKey.h`, 1.2). A key names a block among the
children of one parent; the path of keys from the root names it in the tree.

The 64-bit name of a block in TensorRT-LLM's events: "v1_block_key".

Source: `BlockKeyHasher::hash` in `batch_manager/blockKey.cpp` (1.2; the same arithmetic since 0.20). A
seed made of the number of tokens and the parent's hash takes in, one after the other, the cache salt
(first block of a sequence only), every token (with its extra id, where there are any), the adapter
and the multimodal keys.

Tests compare the bits with TensorRT-LLM's: for plain tokens and for chaining with the values in its own
tests (`tests/unittest/kv_cache_manager_v2_tests/test_kv_cache_event_manager.py`); for salt, adapter,
extra ids and multimodal keys with the results of its C++ statements, compiled. (Values in its
`test_kv_cache_events.py` differ: they come from a Python copy that did not wrap a sum.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

MmKey = tuple[bytes, int]
"""A multimodal item that the block holds a part of: its 32-byte hash, and the part's first token."""


@dataclass(frozen=True, slots=True)
class BlockKey:
    """The key of one block; two keys are equal only if all fields are."""

    tokens: tuple[int, ...]
    """At most `tokens_per_block` ids; fewer only in the tail of a sequence."""
    extra_ids: tuple[int, ...] | None = None
    """One for each token if the request has them (prompt tables), else None."""
    lora_task_id: int | None = None
    extra_keys: tuple[MmKey, ...] = ()
    cache_salt_id: int | None = None

    def num_matching_tokens(self, other: "BlockKey") -> int:
        """Return how many leading tokens and their extra ids agree; 0 if another field differs."""
        if (
            self.lora_task_id != other.lora_task_id
            or self.extra_keys != other.extra_keys
            or self.cache_salt_id != other.cache_salt_id
            or (self.extra_ids is None) != (other.extra_ids is None)
        ):
            return 0
        same = _common(self.tokens, other.tokens)
        if self.extra_ids is not None and other.extra_ids is not None:
            same = min(same, _common(self.extra_ids, other.extra_ids))
        return same


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for position, (one, two) in enumerate(zip(left, right, strict=False)):
        if one != two:
            return position
    return min(len(left), len(right))


MASK_32 = (1 << 32) - 1
MASK_64 = (1 << 64) - 1
GOLDEN = 0x9E3779B9
PARENT_FACTOR = 0xBF58476D1CE4E5B9


def hash_block_key(key: BlockKey, parent_hash: int = 0) -> int:
    """Return the unsigned 64-bit hash of a block; `parent_hash` is 0 for a sequence's first."""
    seed = len(key.tokens) ^ (parent_hash * PARENT_FACTOR & MASK_64)
    if parent_hash == 0 and key.cache_salt_id is not None:
        seed = _mix_64(key.cache_salt_id, seed)
    if key.extra_ids is None:
        for token in key.tokens:
            seed = _mix_32(token, seed)
    else:
        for token, extra_id in zip(key.tokens, key.extra_ids, strict=True):
            seed = _mix_64(extra_id, _mix_32(token, seed))
    if key.lora_task_id is not None:
        seed = _mix_64(key.lora_task_id, seed)
    for digest, start_offset in key.extra_keys:
        for first in range(0, 32, 4):
            seed = _mix_32(int.from_bytes(digest[first : first + 4], "little"), seed)
        seed = _mix_64(start_offset, seed)
    return seed


def _mix_32(value: int, seed: int) -> int:
    """Scramble 32 bits and combine them with the seed.

    The sum with the constant wraps at 32 bits, as both are `uint32_t` in the source, and only then
    is widened.
    """
    value &= MASK_32
    value = (value >> 16 ^ value) * 0x45D9F3B & MASK_32
    value = (value >> 16 ^ value) * 0x45D9F3B & MASK_32
    value = (value >> 16 ^ value) + GOLDEN & MASK_32
    return seed ^ (value + (seed << 6) + (seed >> 2) & MASK_64)


def _mix_64(value: int, seed: int) -> int:
    """Scramble 64 bits and combine them with the seed."""
    value &= MASK_64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK_64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK_64
    value ^= value >> 31
    return seed ^ (value + GOLDEN + (seed << 6) + (seed >> 2) & MASK_64)


MAX_SALT_BYTES = 1024
"""One chunk of BLAKE3; longer salts would need its tree."""

CHUNK_START, CHUNK_END, ROOT = 1, 2, 8
MASK = (1 << 32) - 1
IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def get_cache_salt_id(cache_salt: str) -> int:
    """Return a salt's id, 0 to 2^64 - 1. Raises ValueError if the salt is over 1,024 bytes long.

    The id is the first 8 bytes of its BLAKE3 digest, little-endian (`tensorrt_llm/block_hash.py`).
    """
    data = cache_salt.encode()
    if len(data) > MAX_SALT_BYTES:
        raise ValueError(f"cache_salt has {len(data)} bytes; at most {MAX_SALT_BYTES}")
    return int.from_bytes(blake3(data)[:8], "little")


def blake3(data: bytes) -> bytes:
    """Return the 32-byte digest of at most one chunk (1,024 bytes), which Python's library lacks.

    After the paper "BLAKE3: one function, fast everywhere" (2021), sections 2.2 to 2.4.
    """
    chaining = list(IV)
    starts = range(0, max(len(data), 1), 64)
    for start in starts:
        block = data[start : start + 64]
        flags = CHUNK_START if start == 0 else 0
        if start == starts[-1]:
            flags |= CHUNK_END | ROOT
        chaining = _compress(chaining, block, flags)
    return b"".join(word.to_bytes(4, "little") for word in chaining)


def _compress(chaining: list[int], block: bytes, flags: int) -> list[int]:
    padded = block.ljust(64, b"\0")
    words = [int.from_bytes(padded[i : i + 4], "little") for i in range(0, 64, 4)]
    state = [*chaining, *IV[:4], 0, 0, len(block), flags]
    for turn in range(7):
        if turn:
            words = [words[i] for i in PERMUTATION]
        for number, places in enumerate(COLUMNS_AND_DIAGONALS):
            _quarter(state, places, words[2 * number : 2 * number + 2])
    return [state[i] ^ state[i + 8] for i in range(8)]


def _quarter(state: list[int], places: tuple[int, int, int, int], words: list[int]) -> None:
    a, b, c, d = places
    for word, right_1, right_2 in zip(words, (16, 8), (12, 7), strict=True):
        state[a] = state[a] + state[b] + word & MASK
        state[d] = _rotate(state[d] ^ state[a], right_1)
        state[c] = state[c] + state[d] & MASK
        state[b] = _rotate(state[b] ^ state[c], right_2)


def _rotate(word: int, right: int) -> int:
    return (word >> right | word << 32 - right) & MASK
