"""Made-up answers: each token is a function of those before it, as with a model at temperature 0."""

import zlib

from simworker.v1.request import Request
from simworker.v1.trace_request import TraceRequest

RESERVED_TOKENS = 16
"""Ids below are taken for special ones and never generated."""


class MadeUpTokens:
    """Draws token ids below `vocab_size`. Raises ValueError for less than 1."""

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size: {vocab_size}, at least 1")
        self._first = RESERVED_TOKENS if vocab_size > RESERVED_TOKENS else 0
        self._span = vocab_size - self._first

    def __call__(self, request: Request, count: int) -> list[int]:
        """Return the next `count` tokens; zeros for a request whose tokens nobody knows.

        They depend on the last full block's hash, which stands for all tokens up to its end, on the last
        token and on its place. A block must not become full before the last of them.
        """
        if isinstance(request, TraceRequest):
            return [0] * count
        hashes = request.block_hashes
        seed = zlib.crc32(hashes[-1]) if hashes else 0
        token = request.all_token_ids[-1]
        place = request.num_tokens
        tokens = []
        for at in range(place, place + count):
            draw = zlib.crc32(token.to_bytes(4, "little") + at.to_bytes(4, "little"), seed)
            token = self._first + draw % self._span
            tokens.append(token)
        return tokens
