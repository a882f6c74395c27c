"""The tokens that simulated engines "generate": each is a function of the tokens before it.

Nobody reads the text; but two engines must give the same answer to the same request, and a preempted
request must go on as if it had not been preempted.
"""

import sys
import zlib
from array import array
from collections.abc import Sequence

RESERVED_TOKENS = 16
"""Ids below this number count as special tokens; they are generated only if there are no others."""


def seed_of(tokens: Sequence[int]) -> bytes:
    """Return a digest of a sequence's tokens."""
    return zlib.crc32(array("I", tokens).tobytes()).to_bytes(4, "little")


def extend_seed(seed: bytes, token: int) -> bytes:
    """Return the digest of the tokens of `seed` and one more."""
    grown = zlib.crc32(token.to_bytes(4, sys.byteorder), int.from_bytes(seed, "little"))
    return grown.to_bytes(4, "little")


def next_token(seed: bytes, last: int, position: int, vocab_size: int) -> int:
    """Return the id of the token at `position`, below `vocab_size`.

    `seed` is a digest of all the sequence's tokens, or its newest block's hash; `last` is the id of the
    token before. An answer that is computed again gets the same tokens.
    """
    draw = zlib.crc32(last.to_bytes(4, "little") + position.to_bytes(4, "little"), zlib.crc32(seed))
    if vocab_size > RESERVED_TOKENS:
        return RESERVED_TOKENS + draw % (vocab_size - RESERVED_TOKENS)
    return draw % vocab_size
