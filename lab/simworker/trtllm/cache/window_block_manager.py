"""The sequences of one attention window, and the blocks that they hold.

Source: TensorRT-LLM's `WindowBlockManager` (`batch_manager/kvCacheManager.cpp`, 1.2, commit b35ac1b6),
for one beam, without connectors; its part that handles the blocks' content is `BlockCache`.

The source corrupts its own tree in four cases, in which this module does as the source intends:

- A block that slid out of a sequence's window stays in its table, and another sequence may get it. A
  sequence that lists such a block is never stored; the source checks the block's last owner only, and
  may put a block with another sequence's content into the tree.
- A tail that is stored again after it grew is first taken out under its old key.
- Each window counts the blocks that slid out of it; the source has one counter for all windows.
- A block that is about to be copied is not overwritten first; see `BlockCache`.
"""

from collections import Counter

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.trtllm.blocks.block import KVCacheBlock
from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey
from warmpath.lab.simworker.trtllm.blocks.eviction_policy import NoFreeBlocksError
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.cache.block_cache import BlockCache, CacheOptions
from warmpath.lab.simworker.trtllm.requests.llm_request import GenerationRequest, LlmRequest


class WindowBlockManager:
    """Blocks of one window, which slides with `is_swa`: sequences may then be longer than it."""

    def __init__(
        self,
        window_size: int,
        num_primary_blocks: int,
        num_secondary_blocks: int,
        options: CacheOptions,
        *,
        is_swa: bool = False,
    ) -> None:
        self.window_size = window_size
        self.tokens_per_block = options.tokens_per_block
        self.is_swa = is_swa
        self.cache = BlockCache(window_size, num_primary_blocks, num_secondary_blocks, options)
        self._sequences: dict[int, GenerationRequest] = {}

    @property
    def num_primary_blocks(self) -> int:
        return self.cache.pools.num_primary

    @property
    def num_free_blocks(self) -> int:
        return self.cache.num_free_blocks

    def blocks_of(self, sequence: GenerationRequest) -> list[KVCacheBlock]:
        """Return the blocks that a sequence holds, in order; those that slid out are not among them."""
        gone = sequence.num_front_blocks_removed[self.window_size]
        ids = sequence.cache_block_ids[self.window_size]
        return [self.cache.pools.blocks[block_id] for block_id in ids[gone:]]

    def num_blocks_to_take(self, input_length: int, request: LlmRequest | None) -> int:
        """Return the most free primary blocks that `add_sequence` may use up."""
        keys = [] if request is None else self._context_keys(request, input_length)
        return self.cache.num_blocks_to_take(keys, -(-input_length // self.tokens_per_block))

    def _context_keys(self, request: LlmRequest, input_length: int) -> list[BlockKey]:
        # The last token is computed in any case, as its output is the next token.
        return request.block_keys(input_length - 1, self.tokens_per_block, allow_partial=True)

    def add_sequence(
        self, sequence: GenerationRequest, input_length: int, request: LlmRequest | None
    ) -> int:
        """Give a sequence the blocks of its first `input_length` tokens; return tokens found cached.

        Without `request` nothing is looked up. Raises NoFreeBlocksError, and changes nothing, if fewer
        blocks are free than `num_blocks_to_take` returns.
        """
        if sequence.request_id in self._sequences:
            raise ValueError(f"request_id {sequence.request_id} has a sequence already")
        needed = self.num_blocks_to_take(input_length, request)
        if needed > self.num_free_blocks:
            raise NoFreeBlocksError(f"{needed} blocks needed, {self.num_free_blocks} are free")
        self._sequences[sequence.request_id] = sequence
        if request is None:
            for _ in range(-(-input_length // self.tokens_per_block)):
                self._allocate(sequence)
            return 0
        retentions = (request.retention or KvCacheRetentionConfig()).get_per_block_retention(
            self.tokens_per_block, input_length
        )
        keys = self._context_keys(request, input_length)
        num_matched_tokens = 0
        for block, matched in self.cache.load_or_allocate(keys, retentions):
            self._append(sequence, block)
            num_matched_tokens += matched
        return num_matched_tokens

    def _append(self, sequence: GenerationRequest, block: KVCacheBlock) -> None:
        self.cache.hold(block)
        sequence.cache_block_ids[self.window_size].append(block.block_id)

    def _allocate(self, sequence: GenerationRequest) -> None:
        retention = sequence.retention
        block = self.cache.take(retention.decode_priority, retention.decode_duration_ms)
        self._append(sequence, block)

    def can_adjust(self, sequence: GenerationRequest) -> bool:
        """Whether `adjust_blocks_if_needed` would succeed after one more token."""
        num_tokens = sequence.num_tokens + 1
        if (num_tokens - 1) % self.tokens_per_block or self.num_free_blocks:
            return True
        leaving = self.blocks_of(sequence)[: self._num_to_slide_out(sequence, num_tokens)]
        return any(block.ref_count == 1 for block in leaving)

    def _num_to_slide_out(self, sequence: GenerationRequest, num_tokens: int) -> int:
        if not self.is_swa:
            return 0
        gone = sequence.num_front_blocks_removed[self.window_size]
        return max(0, (num_tokens - self.window_size) // self.tokens_per_block - gone)

    def adjust_blocks_if_needed(self, sequence: GenerationRequest) -> None:
        """After a token was added, release blocks that slid out of the window; get one if none has room.

        Raises NoFreeBlocksError.
        """
        count = self._num_to_slide_out(sequence, sequence.num_tokens)
        for block in self.blocks_of(sequence)[:count]:
            sequence.num_front_blocks_removed[self.window_size] += 1
            self.cache.slide_out(block, sequence.request_id)
        if (sequence.num_tokens - 1) % self.tokens_per_block == 0:
            self._allocate(sequence)

    def store_context_blocks(self, sequence: GenerationRequest, request: LlmRequest) -> None:
        """Store the full blocks that a request has so far; nothing in a sliding window.

        Another sequence may get blocks that slid out, so such a sequence is stored at its end only.
        """
        if not self.is_swa:
            keys = request.block_keys(
                request.usable_size, self.tokens_per_block, allow_partial=False
            )
            self.cache.store_blocks(keys, sequence.cache_block_ids[self.window_size])

    def release_blocks(self, sequence: GenerationRequest, request: LlmRequest | None) -> None:
        """End a sequence: store all that it has computed, if `request` is given, and release all.

        Nothing is stored if it lists a block that another sequence has got since. The last block is
        released first, so that it is the first to be evicted.
        """
        if request is not None and self.cache.is_storable(sequence.request_id):
            keys = request.block_keys(
                request.usable_size, self.tokens_per_block, allow_partial=True
            )
            self.cache.store_blocks(keys, sequence.cache_block_ids[self.window_size])
        for block in reversed(self.blocks_of(sequence)):
            self.cache.drop(block)
        self.cache.forget(sequence.request_id)
        del self._sequences[sequence.request_id]
        sequence.cache_block_ids[self.window_size] = []
        sequence.num_front_blocks_removed[self.window_size] = 0

    def find_new_context_block(self, request: LlmRequest) -> BlockKey | None:
        size = self.tokens_per_block
        parent = self.cache.tree.root
        for number, key in enumerate(
            request.block_keys(len(request.tokens), size, allow_partial=False)
        ):
            child = parent.next_blocks.get(key)
            if child is None:
                return BlockKey(
                    tuple(request.tokens[: (number + 1) * size]),
                    lora_task_id=key.lora_task_id,
                    cache_salt_id=key.cache_salt_id,
                )
            parent = child
        return None

    def check(self) -> None:
        held: Counter[int] = Counter()
        for sequence in self._sequences.values():
            gone = sequence.num_front_blocks_removed[self.window_size]
            ids = sequence.cache_block_ids[self.window_size]
            if len(ids) != -(-sequence.num_tokens // self.tokens_per_block):
                raise BrokenInvariantError(
                    f"request {sequence.request_id}: {len(ids)} blocks, {sequence.num_tokens} tokens"
                )
            held.update(ids[gone:])
        self.cache.check(held)
