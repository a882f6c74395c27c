"""Values of segments as Redis' script writes them, for tests that write them themselves."""

from collections.abc import Iterable, Mapping

import numpy as np

from warmpath.indexer.keys.key import WORD_BYTES, pack_words
from warmpath.indexer.keys.segment_value import PACKED, Packed

MOST_COLUMNS = 0xFFFF


def encode(packed: Packed) -> bytes:
    """Return the value with these contents."""
    columns = len(packed.slots)
    if not 0 < columns <= MOST_COLUMNS:
        raise ValueError(f"a segment has 1 to {MOST_COLUMNS} columns, not {columns}")
    keys = np.ascontiguousarray(packed.keys, "<u8").view(np.uint8).reshape(-1, WORD_BYTES)
    records = np.hstack([keys, packed.bits]).tobytes()
    return bytes([PACKED, 0]) + columns.to_bytes(2, "little") + pack_words(packed.slots) + records


def pack(holders: Mapping[int, Iterable[int]]) -> Packed:
    """Return the contents for keys and the slots that hold each; each has at least one."""
    sets = {key: set(slots) for key, slots in holders.items()}
    slots = tuple(dict.fromkeys(slot for held in sets.values() for slot in sorted(held)))
    held = np.array([[slot in held for slot in slots] for held in sets.values()], np.bool_)
    bits = np.packbits(held, axis=1, bitorder="little")
    return Packed(slots, np.fromiter(sets, np.uint64, len(sets)), bits)
