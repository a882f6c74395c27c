"""A request with lengths and block hashes only.

Recorded workloads have a prompt's length and the blocks that it shares with others, not its tokens. That
is enough, since the cache reads only hashes. Blocks of generated tokens have the hashes that a later
prompt has there, as far as these are known; further ones are made up from the request's id, when a
caller needs them. Appending generated tokens takes one addition, however many they are.
"""

from collections.abc import Sequence

from xxhash import xxh3_128_digest

from warmpath.lab.simworker.v1.hashing.block_hash import BlockHash
from warmpath.lab.simworker.v1.requests.request import Request, SamplingParams


class TraceRequest(Request):
    """A request without token ids: events about it carry none.

    `block_hashes` are those of the prompt's full blocks of `hash_block_size` tokens; further hashes are
    ignored. `answer_hashes` are those of the full blocks after these. A hash covers all tokens up to its
    block's end; a caller that has a number for each block's own content chains them first. Raises
    ValueError if there are fewer hashes than full blocks, and for numbers below 1.
    """

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        block_hashes: Sequence[BlockHash],
        hash_block_size: int,
        max_tokens: int,
        *,
        answer_hashes: Sequence[BlockHash] = (),
        arrival_time: float = 0.0,
        priority: int = 0,
    ) -> None:
        for name, value in (
            ("num_prompt_tokens", num_prompt_tokens),
            ("hash_block_size", hash_block_size),
        ):
            if value < 1:
                raise ValueError(f"{name}: {value}, at least 1")
        full = num_prompt_tokens // hash_block_size
        if len(block_hashes) < full:
            raise ValueError(f"block_hashes: {len(block_hashes)} for {full} full blocks")
        super().__init__(
            request_id,
            (),
            SamplingParams(max_tokens=max_tokens),
            arrival_time=arrival_time,
            priority=priority,
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.hash_block_size = hash_block_size
        self._num_tokens = num_prompt_tokens
        self._block_hashes = list(block_hashes[:full])
        self._prompt_hashes = full
        self._answer_hashes = answer_hashes

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def block_hashes(self) -> list[BlockHash]:
        """Hashes of the full blocks: those given, as far as they go, then made-up ones."""
        hashes = self._block_hashes
        full = self._num_tokens // self.hash_block_size
        if len(hashes) < full:
            done = len(hashes) - self._prompt_hashes
            hashes += self._answer_hashes[done : full - self._prompt_hashes]
            hashes += [
                xxh3_128_digest(f"{self.request_id}/{number}".encode())
                for number in range(len(hashes), full)
            ]
        return hashes

    def append_output_tokens(self, num_tokens: int) -> None:
        """Append `num_tokens` generated tokens. O(1). Raises ValueError for a number below 0."""
        if num_tokens < 0:
            raise ValueError(f"num_tokens: {num_tokens}, at least 0")
        self._num_tokens += num_tokens

    def append_output_token_ids(self, token_ids: int | Sequence[int]) -> None:
        """Append generated tokens; only their number is kept."""
        self.append_output_tokens(1 if isinstance(token_ids, int) else len(token_ids))
