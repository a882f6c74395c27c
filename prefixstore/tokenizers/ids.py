"""Token ids, packed as little-endian uint32; those from another process are checked first."""

import sys
from array import array
from typing import Any

ID_BYTES = 4


def pack_ids(ids: list[int]) -> bytes:
    """Pack ids. Raises OverflowError for one that is no uint32."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class IdsError(ValueError):
    """A value is no list of token ids; says why and quotes nothing."""


def pack(value: Any) -> bytes:
    """Pack decoded JSON. Raises IdsError."""
    # A boolean is an int to Python, and none to us.
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise IdsError("has no list of token ids as 'tokens'")
    try:
        return pack_ids(value)
    except OverflowError as error:
        raise IdsError("has a token id that is no uint32") from error
