"""A request, as the cache sees it, and the sequence of blocks that it holds.

Source: TensorRT-LLM's `LlmRequest` and `GenerationRequest`, 1.2, for one beam.
"""

from dataclasses import dataclass, field
from enum import Enum

from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig


@dataclass(slots=True, eq=False)
class LlmRequest:
    """Tokens, and everything else on which their keys and values depend."""

    request_id: int
    tokens: list[int]
    """The prompt and the generated tokens."""
    max_new_tokens: int = 0
    lora_task_id: int | None = None
    cache_salt_id: int | None = None
    retention: KvCacheRetentionConfig | None = None
    num_computed_tokens: int | None = None
    """Tokens whose keys and values are in the cache; None: all but the last one's."""
    prompt_len: int = field(init=False)
    """Number of tokens when the request was made."""
    prepopulated_prompt_len: int = 0
    """Tokens found cached when its sequence was added. The manager sets it."""
    _full_keys: list[BlockKey] = field(default_factory=list)
    """Keys of the leading full blocks, as far as a caller has asked for them."""

    def __post_init__(self) -> None:
        """Count the prompt. Raises ValueError without one."""
        self.prompt_len = len(self.tokens)
        if not self.tokens:
            raise ValueError("tokens: a request needs at least one")

    def add_new_token(self, token: int) -> None:
        self.tokens.append(token)

    @property
    def usable_size(self) -> int:
        """Tokens whose keys and values can be cached: the last token's are not computed yet."""
        size = len(self.tokens) - 1
        return size if self.num_computed_tokens is None else min(size, self.num_computed_tokens)

    def block_keys(
        self, usable_size: int, tokens_per_block: int, *, allow_partial: bool
    ) -> list[BlockKey]:
        """Return the keys of the blocks of the first `usable_size` tokens.

        With `allow_partial` the last block may hold fewer than `tokens_per_block`, which must be the
        same in all calls.
        """
        num_full, rest = divmod(usable_size, tokens_per_block)
        for number in range(len(self._full_keys), num_full):
            start = number * tokens_per_block
            self._full_keys.append(self._block_key(start, start + tokens_per_block))
        keys = self._full_keys[:num_full]
        if rest and allow_partial:
            keys.append(self._block_key(usable_size - rest, usable_size))
        return keys

    def _block_key(self, start: int, end: int) -> BlockKey:
        return BlockKey(
            tuple(self.tokens[start:end]),
            lora_task_id=self.lora_task_id,
            cache_salt_id=self.cache_salt_id,
        )


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """A request's sequence: how long it is, and its blocks in each window."""

    request_id: int
    num_tokens: int
    cache_block_ids: dict[int, list[int]]
    """Window size -> block ids; front blocks that slid out of the window stay listed."""
    num_front_blocks_removed: dict[int, int]
    """Window size -> number of listed front blocks that it no longer holds."""
    retention: KvCacheRetentionConfig


class RequestState(Enum):
    """The state of a request."""

    WAITING = "waiting"
    """The request is new, and holds no blocks."""
    CONTEXT = "context"
    """The request's context is being computed."""
    GENERATING = "generating"


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request, as the schedulers see it."""

    llm: LlmRequest
    generation: Generation
    seed: bytes
    """Digest of all its tokens so far (`seed_of`)."""
    state: RequestState = RequestState.WAITING
    context_position: int = 0
    """Tokens of the context that are computed."""
    context_chunk_size: int = 0
    """Tokens of the context that the step being scheduled computes."""

    @property
    def context_remaining_length(self) -> int:
        """Tokens of the context still to be computed."""
        return self.llm.prompt_len - self.context_position

    @property
    def has_started(self) -> bool:
        """Whether the request holds blocks."""
        return self.state is not RequestState.WAITING
