"""The 64-bit name of a block in TensorRT-LLM's events: "v1_block_key".

Source: `BlockKeyHasher::hash` in `batch_manager/blockKey.cpp` (1.2; the same arithmetic since 0.20). A
seed made of the number of tokens and the parent's hash takes in, one after the other, the cache salt
(first block of a sequence only), every token (with its extra id, where there are any), the adapter
and the multimodal keys.

Tests compare the bits with TensorRT-LLM's: for plain tokens and for chaining with the values in its own
tests (`tests/unittest/kv_cache_manager_v2_tests/test_kv_cache_event_manager.py`); for salt, adapter,
extra ids and multimodal keys with the results of its C++ statements, compiled. (Values in its
`test_kv_cache_events.py` differ: they come from a Python copy that did not wrap a sum.)
"""

from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey

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
