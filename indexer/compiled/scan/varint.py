"""Token ids as protobuf packs them: varints, 7 bits a byte, the lowest first.

Source: protobuf.dev/programming-guides/encoding, "Base 128 Varints".
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import compiled


@compiled
def unpack(data: NDArray[np.uint8], ids: NDArray[np.uint32]) -> int:
    """Read varints; return how many there are, -1 where one does not end or exceeds 32 bits.

    `ids` has as many elements as `data` has, since each varint takes a byte at least.
    """
    count, at, end = 0, 0, data.size
    while at < end:
        word = np.uint64(data[at])
        at += 1
        if word >= np.uint64(0x80):
            word &= np.uint64(0x7F)
            shift = 7
            while True:
                if at >= end or shift > 63:
                    return -1
                part = np.uint64(data[at])
                at += 1
                word |= (part & np.uint64(0x7F)) << np.uint64(shift)
                if part < np.uint64(0x80):
                    break
                shift += 7
        if word > np.uint64(0xFFFFFFFF):
            return -1
        ids[count] = np.uint32(word)
        count += 1
    return count
