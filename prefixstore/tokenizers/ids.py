"""Packs token ids as little-endian uint32; ids from another process are checked first."""

import sys
from array import array
from typing import Any

ID_BYTES = 4


def pack_ids(ids: list[int]) -> bytes:
    """Pack ids, 4 bytes each. Raises OverflowError for one that is not a uint32."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class IdsError(ValueError):
    """A value is not a list of token ids; the message does not quote it."""


def pack(value: Any) -> bytes:
    """Pack ids from decoded JSON. Raises IdsError."""
    # By type, since isinstance would accept booleans.
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise IdsError("has no list of token ids as 'tokens'")
    try:
        return pack_ids(value)
    except OverflowError as error:
        raise IdsError("has a token id that is not a uint32") from error
