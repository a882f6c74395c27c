"""Tokens that are a function of the tokens before them: what every engine here "generates".

Nobody reads the text; but two engines that were asked the same must answer the same, and a request
that was preempted must go on as if nothing had happened.
"""

import sys
import zlib
from array import array
from collections.abc import Sequence

RESERVED_TOKENS = 16
"""Ids below are taken for special ones and never generated."""


def seed_of(tokens: Sequence[int]) -> bytes:
    """Return what stands for these tokens."""
    return zlib.crc32(array("I", tokens).tobytes()).to_bytes(4, "little")


def extend_seed(seed: bytes, token: int) -> bytes:
    """Return `seed_of` the tokens that `seed` stands for and one more."""
    grown = zlib.crc32(token.to_bytes(4, sys.byteorder), int.from_bytes(seed, "little"))
    return grown.to_bytes(4, "little")


def next_token(seed: bytes, last: int, position: int, vocab_size: int) -> int:
    """Return the id of the token at `position`, below `vocab_size`.

    `seed` stands for the sequence (all its tokens, or its newest block's hash), `last` is the id of the
    token before. An answer that is begun anew from its own tokens goes on as it would have.
    """
    draw = zlib.crc32(last.to_bytes(4, "little") + position.to_bytes(4, "little"), zlib.crc32(seed))
    if vocab_size > RESERVED_TOKENS:
        return RESERVED_TOKENS + draw % (vocab_size - RESERVED_TOKENS)
    return draw % vocab_size
