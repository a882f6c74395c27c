"""The arrays in which the scanner writes what batches have, and the columns of their rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.outside import zeros

COLUMNS = 15
(
    KIND,
    TIER,
    GROUP,
    NAMES_AT,
    NAMES,
    HAS_PARENT,
    TOKENS_AT,
    TOKENS,
    HAS_PAIRS,
    SIZE,
    LORA_AT,
    LORA,
    SALT_AT,
    SALT,
    EXTRAS_AT,
) = range(COLUMNS)
"""Columns of `Scanned.events`."""

ANOTHER = -1
"""In column `LORA`: an adapter that only has a number."""
LEAST_EVENT = 8
"""The fewest bytes of an event."""


class Scanned(NamedTuple):
    """Scanned batches. Shapes: b bytes, e events, n names and t tokens."""

    data: NDArray[np.uint8]
    """(b): the bytes of the batches; adapters and salts are only in here."""
    events: NDArray[np.int64]
    """(e, 15): kind, tier, group; position of the first name, number of names, whether there is a
    parent; position of the first token, number of tokens (-1: they are not those of the blocks),
    whether the last token of each block has a second one, block size; where adapter and salt begin and
    how long they are; where the extra keys begin (-1: there are none)."""
    parents: NDArray[np.uint64]
    """(e): the name of the parent, where an event has one."""
    names: NDArray[np.uint64]
    """(n): the names of all events, one after the other."""
    tokens: NDArray[np.uint32]
    """(t): the token ids of all events; of pairs, the first ones."""
    seconds: NDArray[np.uint32]
    """(t): the second tokens of pairs, or at a block's last token the one behind the block."""


def room(size: int) -> Scanned:
    """Return arrays with room for as much as `size` bytes can contain."""
    events = size // LEAST_EVENT + 1
    return Scanned(
        np.frombuffer(b"", np.uint8),
        zeros((events, COLUMNS), np.int64),
        zeros(events, np.uint64),
        zeros(size, np.uint64),
        zeros(size, np.uint32),
        zeros(size, np.uint32),
    )
