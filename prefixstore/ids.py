"""Token ids from another process, checked and packed."""

import sys
from array import array
from typing import Any


class IdsError(ValueError):
    """A value is no list of token ids; says why and quotes nothing."""


def pack(value: Any) -> bytes:
    """Pack decoded JSON as little-endian uint32, 4 bytes an id. Raises IdsError."""
    # A boolean is an int to Python, and none to us.
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise IdsError("has no list of token ids as 'tokens'")
    try:
        packed = array("I", value)
    except OverflowError as error:
        raise IdsError("has a token id that is no uint32") from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
