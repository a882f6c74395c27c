"""The keys of a prompt's blocks (`indexer.keys.key`), compiled."""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import compiled
from warmpath.indexer.compiled.keys import block_key


@compiled
def make_keys(
    tokens: NDArray[np.uint32], size: int, root: np.uint64, keys: NDArray[np.uint64]
) -> None:
    """Fill `keys` with the first blocks' keys: `size` ids of `tokens` each, chained to `root`."""
    key = root
    for block in range(keys.size):
        key = block_key(tokens, block * size, size, key)
        keys[block] = key


def packed(tokens: bytes, size: int, blocks: int, root: int) -> bytes:
    """Return the first `blocks` blocks' keys, packed. Raises ValueError for too few tokens."""
    keys = np.empty(blocks, np.uint64)
    if blocks:
        ids = np.frombuffer(tokens, np.uint32, blocks * size)
        make_keys(ids, size, np.uint64(root), keys)
    return keys.astype("<u8", copy=False).tobytes()
