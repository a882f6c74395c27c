"""Token ids in their packed form: little-endian uint32, 4 bytes each."""

import sys
from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def pack_tokens(ids: Iterable[int]) -> bytes:
    """Pack token ids. Raises ValueError where one is not an unsigned 32-bit integer."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError) as error:
        raise ValueError("a token id must be an unsigned 32-bit integer") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(packed: bytes) -> "array[int]":
    """Return the ids of a packed form whose length is a multiple of 4."""
    ids = array("I", packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
