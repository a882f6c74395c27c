"""Made-up answers: each token is a function of those before it, as with a model at temperature 0."""

from warmpath.lab.simworker.sampler import next_token
from warmpath.lab.simworker.v1.requests.request import Request
from warmpath.lab.simworker.v1.requests.trace_request import TraceRequest


class MadeUpTokens:
    """Draws token ids below `vocab_size`. Raises ValueError for less than 1."""

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size: {vocab_size}, at least 1")
        self._vocab_size = vocab_size

    def __call__(self, request: Request, count: int) -> list[int]:
        """Return the next `count` tokens; zeros for a request without token ids.

        They depend on the last full block's hash, which covers all tokens up to its end, on the last
        token and on its position. A block must not become full before the last of them.
        """
        if isinstance(request, TraceRequest):
            return [0] * count
        seed = request.block_hashes[-1] if request.block_hashes else b""
        token = request.all_token_ids[-1]
        place = request.num_tokens
        tokens = []
        for position in range(place, place + count):
            token = next_token(seed, token, position, self._vocab_size)
            tokens.append(token)
        return tokens
