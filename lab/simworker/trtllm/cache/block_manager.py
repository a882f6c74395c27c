"""All attention windows of a model.

Source: TensorRT-LLM's `BlockManager` (`batch_manager/kvCacheManager.cpp`, 1.2). A sequence has blocks in
each window; each window evicts on its own. Block ids count from 0 in each window.
"""

from collections.abc import Callable, Iterable, Mapping

from warmpath.lab.simworker.trtllm.blocks.eviction_policy import NoFreeBlocksError
from warmpath.lab.simworker.trtllm.cache.block_cache import CacheOptions
from warmpath.lab.simworker.trtllm.cache.window_block_manager import WindowBlockManager
from warmpath.lab.simworker.trtllm.requests.llm_request import GenerationRequest, LlmRequest

BlocksPerWindow = Mapping[int, tuple[int, int]]
"""Window size in tokens -> blocks of its (primary, secondary) pool."""


class BlockManager:
    """A `WindowBlockManager` for each window, from the smallest to the largest."""

    def __init__(
        self,
        blocks_per_window: BlocksPerWindow,
        options: CacheOptions,
        *,
        max_sequence_length: int,
    ) -> None:
        if not blocks_per_window:
            raise ValueError("blocks_per_window: at least one window is needed")
        if options.tokens_per_block < 1:
            raise ValueError(
                f"tokens_per_block is {options.tokens_per_block}; at least 1 is needed"
            )
        if min(blocks_per_window) < 1:
            raise ValueError(f"blocks_per_window: a window of {min(blocks_per_window)} tokens")
        self.tokens_per_block = options.tokens_per_block
        self.windows = {
            window: WindowBlockManager(
                window,
                *blocks_per_window[window],
                options,
                is_swa=window < max_sequence_length,
            )
            for window in sorted(blocks_per_window)
        }

    @property
    def is_variable_window(self) -> bool:
        return len(self.windows) > 1

    def sum(self, figure: Callable[[WindowBlockManager], int]) -> int:
        """Return a figure, added up over the windows."""
        return sum(figure(manager) for manager in self.windows.values())

    @property
    def num_free_blocks(self) -> int:
        """Primary blocks of all windows that no sequence holds."""
        return self.sum(lambda manager: manager.num_free_blocks)

    @property
    def num_free_blocks_per_window(self) -> dict[int, int]:
        """Primary blocks that no sequence holds, for each window."""
        return {window: manager.num_free_blocks for window, manager in self.windows.items()}

    def add_sequence(
        self, sequence: GenerationRequest, input_length: int, request: LlmRequest | None
    ) -> int:
        """Give a sequence its blocks in each window; return the tokens found cached in every window.

        Raises NoFreeBlocksError, and changes nothing, if a window has too few.
        """
        for window, manager in self.windows.items():
            needed = manager.num_blocks_to_take(input_length, request)
            if needed > manager.num_free_blocks:
                raise NoFreeBlocksError(
                    f"window {window}: {needed} blocks needed, {manager.num_free_blocks} are free"
                )
        return min(
            [
                manager.add_sequence(sequence, input_length, request)
                for manager in self.windows.values()
            ]
        )

    def add_token(self, sequence: GenerationRequest) -> None:
        """Make room for one more token. Raises NoFreeBlocksError, and changes nothing, if it cannot."""
        for window, manager in self.windows.items():
            if not manager.can_adjust(sequence):
                raise NoFreeBlocksError(f"window {window}: no block for one more token")
        sequence.num_tokens += 1
        for manager in self.windows.values():
            manager.adjust_blocks_if_needed(sequence)

    def remove_token(self, sequence: GenerationRequest) -> None:
        """Take the last token back, and its block if that becomes empty.

        Raises ValueError, and changes nothing, if it is the only token or `can_remove_token` forbids it.
        """
        position = sequence.num_tokens - 1
        if not position:
            raise ValueError(f"request_id {sequence.request_id}: its only token cannot be removed")
        for window, manager in self.windows.items():
            if not manager.can_remove_token(sequence):
                raise ValueError(
                    f"request_id {sequence.request_id}: token {position} stays in window {window}"
                )
        sequence.num_tokens -= 1
        if sequence.num_tokens % self.tokens_per_block == 0:
            for manager in self.windows.values():
                manager.release_last_block(sequence)

    def each(self) -> Iterable[WindowBlockManager]:
        """Return the managers, from the smallest window to the largest."""
        return self.windows.values()

    def check(self) -> None:
        for manager in self.each():
            manager.check()
