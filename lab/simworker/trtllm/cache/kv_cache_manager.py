"""TensorRT-LLM's KV cache, as its scheduler sees it: all attention windows of a model.

A sequence has blocks in each window. Each window evicts on its own, and counts its block ids from 0.

Source: `KVCacheManager` and `BlockManager` (`batch_manager/kvCacheManager.cpp`, 1.2), with their methods
under Python names, for self-attention with one beam and without sink tokens.
"""

from collections.abc import Mapping

from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey
from warmpath.lab.simworker.trtllm.blocks.eviction_policy import NoFreeBlocksError
from warmpath.lab.simworker.trtllm.blocks.retention import KvCacheRetentionConfig
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.window_block_manager import WindowBlockManager
from warmpath.lab.simworker.trtllm.events.kv_cache_event import KVCacheEvent
from warmpath.lab.simworker.trtllm.requests.llm_request import GenerationRequest, LlmRequest

BlocksPerWindow = Mapping[int, tuple[int, int]]
"""Window size in tokens -> blocks of its (primary, secondary) pool."""


class KVCacheManager:
    """Sequences by request id, and the windows from the smallest to the largest.

    `max_sequence_length` is the most tokens that a sequence may have; windows below it slide.
    """

    def __init__(
        self,
        blocks_per_window: BlocksPerWindow,
        options: CacheOptions,
        *,
        max_sequence_length: int,
        enable_block_reuse: bool = True,
    ) -> None:
        if not blocks_per_window:
            raise ValueError("blocks_per_window: at least one window is needed")
        if options.tokens_per_block < 1:
            raise ValueError(
                f"tokens_per_block is {options.tokens_per_block}; at least 1 is needed"
            )
        if min(blocks_per_window) < 1:
            raise ValueError(f"blocks_per_window: a window of {min(blocks_per_window)} tokens")
        self.windows = {
            window: WindowBlockManager(
                window, *blocks_per_window[window], options, is_swa=window < max_sequence_length
            )
            for window in sorted(blocks_per_window)
        }
        self.tokens_per_block = options.tokens_per_block
        self.max_sequence_length = max_sequence_length
        self.enable_block_reuse = enable_block_reuse
        self._event_manager = options.event_manager
        self._sequences: dict[int, GenerationRequest] = {}

    def add_sequence(
        self, request_id: int, input_length: int, request: LlmRequest | None = None
    ) -> None:
        """Allocate the first `input_length` tokens of a request, reusing cached blocks.

        Sets on `request` how many tokens were found; it may be left out only if reuse is off. Raises
        NoFreeBlocksError, and changes nothing, if the tokens do not fit.
        """
        if request_id in self._sequences:
            raise ValueError(f"request_id {request_id} has a sequence already")
        if not 1 <= input_length <= self.max_sequence_length:
            raise ValueError(
                f"input_length is {input_length}; it must be 1 to {self.max_sequence_length}"
            )
        if request is None and self.enable_block_reuse:
            raise ValueError("request: is needed where blocks are reused")
        if request is not None and input_length > len(request.tokens):
            raise ValueError(
                f"input_length is {input_length}; the request has {len(request.tokens)} tokens"
            )
        retention = (request and request.retention) or KvCacheRetentionConfig()
        sequence = GenerationRequest(
            request_id,
            input_length,
            {window: [] for window in self.windows},
            dict.fromkeys(self.windows, 0),
            retention,
        )
        reused_by = request if self.enable_block_reuse else None
        for window, manager in self.windows.items():
            needed = manager.num_blocks_to_take(input_length, reused_by)
            if needed > manager.num_free_blocks:
                raise NoFreeBlocksError(
                    f"window {window}: {needed} blocks needed, {manager.num_free_blocks} are free"
                )
        managers = self.windows.values()
        found = min([each.add_sequence(sequence, input_length, reused_by) for each in managers])
        self._sequences[request_id] = sequence
        if request is not None:
            request.prepopulated_prompt_len = found

    def add_token(self, request_id: int) -> None:
        """Make room for one more token. Raises NoFreeBlocksError, and changes nothing, if it cannot."""
        sequence = self.get_sequence(request_id)
        if sequence.num_tokens >= self.max_sequence_length:
            raise ValueError(
                f"request_id {request_id} has {sequence.num_tokens} tokens; "
                f"max_sequence_length is {self.max_sequence_length}"
            )
        for window, manager in self.windows.items():
            if not manager.can_adjust(sequence):
                raise NoFreeBlocksError(f"window {window}: no block for one more token")
        sequence.num_tokens += 1
        for manager in self.windows.values():
            manager.adjust_blocks_if_needed(sequence)

    def remove_sequence(self, request_id: int, request: LlmRequest | None = None) -> None:
        """Remove a sequence; with `request`, its computed blocks stay cached. Ignores unknown ids."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            for manager in self.windows.values():
                manager.release_blocks(sequence, request if self.enable_block_reuse else None)

    def store_context_blocks(self, request: LlmRequest) -> None:
        """Cache the full blocks of a request's context, in windows that do not slide."""
        sequence = self.get_sequence(request.request_id)
        if self.enable_block_reuse:
            for manager in self.windows.values():
                manager.store_context_blocks(sequence, request)

    def find_new_context_block(self, request: LlmRequest) -> BlockKey | None:
        """Return the prompt to the end of its first full block that is not cached; None if all are.

        Only for a single window: raises ValueError with several.
        """
        if self.is_variable_window:
            raise ValueError("find_new_context_block: works with a single window only")
        [manager] = self.windows.values()
        return manager.find_new_context_block(request)

    def get_sequence(self, request_id: int) -> GenerationRequest:
        """Return a request's sequence. Raises ValueError if it has none."""
        found = self._sequences.get(request_id)
        if found is None:
            raise ValueError(f"request_id {request_id} has no sequence")
        return found

    @property
    def is_variable_window(self) -> bool:
        return len(self.windows) > 1

    @property
    def num_free_blocks_per_window(self) -> dict[int, int]:
        """Primary blocks that no sequence holds, for each window."""
        return {window: manager.num_free_blocks for window, manager in self.windows.items()}

    def get_num_free_blocks(self) -> int:
        """Return the number of primary blocks of all windows that no sequence holds."""
        return sum(self.num_free_blocks_per_window.values())

    def get_remaining_blocks_to_completion(self, request: LlmRequest, window_size: int) -> int:
        """Return the most further blocks that a request may take up to its last token.

        `max_new_tokens` counts from `prompt_len`. A window that slides allocates the whole context too,
        and a block that slid out does not become free while another request holds it: there only blocks
        that no other request holds count as held. (The source counts with the window's length only, and
        may run out of blocks.)
        """
        manager = self.windows[window_size]
        size = self.tokens_per_block
        total = -(-(request.prompt_len + request.max_new_tokens) // size)
        sequence = self._sequences.get(request.request_id)
        context = 0 if sequence else -(-len(request.tokens) // size)
        if manager.is_swa:
            total = min(total, -(-(window_size + size - 1) // size))
        if sequence is None:
            return max(total, context)
        held = manager.blocks_of(sequence)
        if manager.is_swa:
            held = [block for block in held if block.ref_count == 1]
        return max(0, total - len(held))

    def refresh_blocks(self) -> None:
        for manager in self.windows.values():
            manager.cache.eviction_policy.refresh()

    def reset_reuse_state(self) -> bool:
        """Forget all cached content; False, and nothing done, while there are sequences."""
        managers = self.windows.values()
        if any(manager.num_free_blocks < manager.num_primary_blocks for manager in managers):
            return False
        for manager in managers:
            manager.cache.clear()
        return True

    def flush_iteration_events(self) -> list[KVCacheEvent]:
        return self._event_manager.flush() if self._event_manager else []

    def get_latest_events(self) -> list[KVCacheEvent]:
        return self._event_manager.get_events() if self._event_manager else []

    def check(self) -> None:
        for manager in self.windows.values():
            manager.check()
        if self._event_manager:
            self._event_manager.check()
        for sequence in self._sequences.values():
            for window, manager in self.windows.items():
                gone = sequence.num_front_blocks_removed[window]
                if gone * self.tokens_per_block > max(0, sequence.num_tokens - window):
                    raise BrokenInvariantError(
                        f"request {sequence.request_id}: {gone} blocks left window {window} too soon"
                    )
                if gone and not manager.is_swa:
                    raise BrokenInvariantError(f"blocks left window {window}, which does not slide")
