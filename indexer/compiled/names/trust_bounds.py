"""Finds batches after which a rank's trust may change.

Batches that arrive together are applied in one call, up to the first after which the trust may
change. The caller then decides on the trust before the next batch is applied.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.blocks.blocks import Blocks
from warmpath.indexer.compiled.jit import inlined
from warmpath.indexer.compiled.names.names import FASTEST, Own

NEVER = 1 << 62
"""A bound that no count reaches."""


class Bounds(NamedTuple):
    """The numbers of blocks from which on the trust may change."""

    pool: NDArray[np.int64]
    """(p): slots of the places that share the cache's blocks."""
    most: int
    """The most blocks that the places of `pool` can hold together."""
    slower: NDArray[np.int64]
    """(s): slots of the slower tiers' places."""
    enough: int
    """How many more blocks stored in the fastest tier settle all doubt, where slower tiers hold none."""


@inlined
def may_change_trust(blocks: Blocks, mine: Own, bounds: Bounds) -> bool:
    """Whether the rank's trust may change after the batch that was applied last."""
    held = 0
    for at in range(bounds.pool.size):
        held += blocks.counts[bounds.pool[at]]
    if held > bounds.most:
        return True
    if mine.state[FASTEST] < bounds.enough:
        return False
    for at in range(bounds.slower.size):
        if blocks.counts[bounds.slower[at]]:
            return False
    return True
