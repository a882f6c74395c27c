"""A request, as the cache sees it, and the sequence of blocks that it holds.

Source: TensorRT-LLM's `LlmRequest` and `GenerationRequest`, 1.2, for one beam.
"""

from dataclasses import dataclass, field
from enum import Enum

from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey, MmKey
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig


@dataclass(frozen=True, slots=True)
class MultimodalItem:
    """An item whose placeholders stand in the prompt."""

    digest: bytes
    """32 bytes that identify its content."""
    start: int
    """Its first placeholder's position."""
    length: int


@dataclass(slots=True, eq=False)
class LlmRequest:
    """Tokens, and everything else on which their keys and values depend."""

    request_id: int
    tokens: list[int]
    """The prompt and the generated tokens."""
    max_new_tokens: int = 0
    token_extra_ids: list[int] | None = None
    """One for each token, if the request has them."""
    lora_task_id: int | None = None
    cache_salt_id: int | None = None
    multimodal_items: list[MultimodalItem] = field(default_factory=list)
    retention: KvCacheRetentionConfig | None = None
    num_computed_tokens: int | None = None
    """Tokens whose keys and values are in the cache; None: all but the last one's."""
    prompt_len: int = field(init=False)
    """Number of tokens when the request was made or last paused."""
    prepopulated_prompt_len: int = 0
    """Tokens found cached when its sequence was added. The manager sets this and the fields below."""
    alloc_total_blocks: int = 0
    alloc_new_blocks: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0
    _full_keys: list[BlockKey] = field(default_factory=list)
    """Keys of the leading full blocks, as far as a caller has asked for them."""

    def __post_init__(self) -> None:
        """Count the prompt. Raises ValueError if fields contradict each other."""
        self.prompt_len = len(self.tokens)
        if not self.tokens:
            raise ValueError("tokens: a request needs at least one")
        if self.token_extra_ids is not None and len(self.token_extra_ids) != len(self.tokens):
            raise ValueError(
                f"token_extra_ids: {len(self.token_extra_ids)} for {len(self.tokens)} tokens"
            )
        for item in self.multimodal_items:
            if len(item.digest) != 32:
                raise ValueError(f"multimodal_items: a digest has {len(item.digest)} bytes, not 32")

    def add_new_token(self, token: int, extra_id: int = 0) -> None:
        self.tokens.append(token)
        if self.token_extra_ids is not None:
            self.token_extra_ids.append(extra_id)

    def remove_tokens(self, count: int) -> None:
        """Remove the last `count` tokens: speculative tokens that were refused."""
        if not 0 <= count < len(self.tokens):
            raise ValueError(f"count is {count}; the request has {len(self.tokens)} tokens")
        del self.tokens[len(self.tokens) - count :]
        if self.token_extra_ids is not None:
            del self.token_extra_ids[len(self.tokens) :]
        self._full_keys.clear()

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
        extra_ids = self.token_extra_ids
        return BlockKey(
            tuple(self.tokens[start:end]),
            None if extra_ids is None else tuple(extra_ids[start:end]),
            self.lora_task_id,
            self._mm_keys(start, end),
            self.cache_salt_id,
        )

    def _mm_keys(self, start: int, end: int) -> tuple[MmKey, ...]:
        return tuple(
            (item.digest, max(0, start - item.start))
            for item in self.multimodal_items
            if end > item.start and start < item.start + item.length
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
    """It is new or paused, and holds no blocks."""
    CONTEXT = "context"
    """Its prompt is being computed."""
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
        """Whether it holds blocks."""
        return self.state is not RequestState.WAITING
