"""Tokens that are a function of the tokens before them: what every engine here "generates".

Nobody reads the text; but two engines that were asked the same must answer the same, and a request
that was preempted must go on as if nothing had happened.
"""

import zlib

RESERVED_TOKENS = 16
"""Ids below are taken for special ones and never generated."""


def next_token(seed: bytes, last: int, position: int, vocab_size: int) -> int:
    """Return the id of the token at `position`, below `vocab_size`.

    `seed` stands for the sequence (its newest block hash, say), `last` is the id of the token before.
    """
    draw = zlib.crc32(last.to_bytes(4, "little") + position.to_bytes(4, "little"), zlib.crc32(seed))
    if vocab_size > RESERVED_TOKENS:
        return RESERVED_TOKENS + draw % (vocab_size - RESERVED_TOKENS)
    return draw % vocab_size
