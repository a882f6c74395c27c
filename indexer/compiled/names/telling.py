"""Which batches tell how far a rank may be believed, so that this is judged before the next one.

Batches that arrive together are followed at once as long as none of them does.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.compiled.blocks.blocks import Blocks
from indexer.compiled.jit import inlined
from indexer.compiled.names.names import FASTEST, Own

NEVER = 1 << 62
"""A bound that no count reaches."""


class Bounds(NamedTuple):
    """The counts of blocks with which a batch tells something."""

    pool: NDArray[np.int64]
    """(p): slots of the places that share the cache's blocks."""
    most: int
    """Blocks that they can hold together."""
    slower: NDArray[np.int64]
    """(s): slots of the slower tiers' places."""
    enough: int
    """Blocks stored in the fastest tier with which what is in doubt is settled, where the slower tiers
    hold nothing."""


@inlined
def is_telling(blocks: Blocks, mine: Own, bounds: Bounds) -> bool:
    """Whether the batch that was applied last tells how far the rank may be believed."""
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
