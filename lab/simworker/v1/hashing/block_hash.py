"""Block hashes, byte-equal to the engine's.

    hash[i] = H((hash[i - 1] or NONE_HASH, tuple of block i's token ids, extra keys or None))
    NONE_HASH = H(seed)

A hash covers all tokens up to the end of its block. Only full blocks have one. H is one of
`lab/simworker/v1/hashing/algorithms.py`, the extra keys are those of `extra_keys.py`.

Source: `vllm/v1/core/kv_cache_utils.py` of 0.32. The engine keeps NONE_HASH in a global variable; its
seed comes from the environment or, for the xxhash algorithms, is random. Here it is an argument, since
one process simulates many engines.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from warmpath.lab.simworker.v1.hashing.algorithms import HashFunction, sha256
from warmpath.lab.simworker.v1.hashing.extra_keys import Keyed, generate_block_hash_extra_keys

BlockHash = bytes
"""A digest: 32 bytes, 16 with the xxhash algorithms."""

BlockHashWithGroupId = bytes
"""A digest, and the group's number in four bytes, big-endian: the key of a cached block."""

ExternalBlockHash = int | bytes
"""A hash in an event."""

DEFAULT_NONE_HASH_SEED = "vllm-none-hash"
"""The seed if PYTHONHASHSEED is not set (0.29 and later, sha256 and sha256_cbor)."""


def none_hash(
    hash_function: HashFunction = sha256, seed: str = DEFAULT_NONE_HASH_SEED
) -> BlockHash:
    """Return the hash that is the parent of first blocks; `seed` is PYTHONHASHSEED."""
    return hash_function(seed)


NONE_HASH = none_hash()
"""The parent of first blocks with the default algorithm and seed."""


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: int) -> BlockHashWithGroupId:
    """Return the key of a block in a group."""
    return block_hash + group_id.to_bytes(4, "big")


def get_block_hash(key: BlockHashWithGroupId) -> BlockHash:
    """Return the digest in a key."""
    return key[:-4]


def get_group_id(key: BlockHashWithGroupId) -> int:
    """Return the group in a key."""
    return int.from_bytes(key[-4:], "big")


def maybe_convert_block_hash(
    hash_bytes: BlockHash, *, use_int_block_hashes: bool = True
) -> ExternalBlockHash:
    """Return a hash for an event: the last 8 bytes as an unsigned integer, or all bytes.

    vLLM's VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES chooses between the two.
    """
    return int.from_bytes(hash_bytes[-8:], "big") if use_int_block_hashes else hash_bytes


class Hashable(Keyed, Protocol):
    """The part of a request that is hashed."""

    @property
    def block_hashes(self) -> list[BlockHash]:
        """The hashes computed so far."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """The token ids of prompt and answer."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens of prompt and answer."""


BlockHasher = Callable[[Hashable], list[BlockHash]]
"""Returns the hashes of a request's full blocks that have none yet."""


def get_request_block_hasher(
    hash_block_size: int, caching_hash_fn: HashFunction, seed_hash: BlockHash | None = None
) -> BlockHasher:
    """Return a hasher of requests, in blocks of `hash_block_size` tokens.

    `seed_hash` is the chain's NONE_HASH, by default that of the default seed.
    Raises ValueError for a size below 1.
    """
    if hash_block_size < 1:
        raise ValueError(f"hash_block_size: {hash_block_size}, at least 1")
    root = none_hash(caching_hash_fn) if seed_hash is None else seed_hash

    def new_block_hashes(request: Hashable) -> list[BlockHash]:
        hashes = request.block_hashes
        start = len(hashes) * hash_block_size
        end = start + hash_block_size
        num_tokens = request.num_tokens
        if end > num_tokens:
            return []
        parent = hashes[-1] if hashes else root
        tokens = request.all_token_ids
        new = []
        while end <= num_tokens:
            extra = generate_block_hash_extra_keys(request, start)
            parent = caching_hash_fn((parent, tuple(tokens[start:end]), extra))
            new.append(parent)
            start, end = end, end + hash_block_size
        return new

    return new_block_hashes
