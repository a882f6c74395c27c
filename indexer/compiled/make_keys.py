"""The keys of a prompt's blocks (`indexer.keys.key`), compiled."""

import numpy as np
from numpy.typing import NDArray

from indexer.compiled.jit import compiled
from indexer.compiled.xxh64 import block_key


@compiled
def make_keys(
    tokens: NDArray[np.uint32], size: int, root: np.uint64, keys: NDArray[np.uint64]
) -> None:
    """Write the keys of the leading blocks of `size` ids, chained to `root`; `tokens` has them all."""
    key = root
    for block in range(keys.size):
        key = block_key(tokens, block * size, size, key)
        keys[block] = key


def packed(tokens: bytes, size: int, blocks: int, root: int) -> bytes:
    """Return the keys of `make_keys`, packed. Raises ValueError where there are too few tokens."""
    keys = np.empty(blocks, np.uint64)
    if blocks:
        ids = np.frombuffer(tokens, np.uint32, blocks * size)
        make_keys(ids, size, np.uint64(root), keys)
    return keys.astype("<u8", copy=False).tobytes()
