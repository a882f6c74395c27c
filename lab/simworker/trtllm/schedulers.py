"""The choice of requests for which there is memory, and of the tokens of them that a step computes.

Source: GUARANTEED_NO_EVICT, the default policy of TensorRT-LLM's `CapacityScheduler`
(`batch_manager/capacityScheduler.cpp`, 1.2). It starts a request only when there are blocks for all
tokens it may ever have. A request waits if another one is just computing the next block of its prompt: a
step later that block is cached.
"""

from collections.abc import Sequence

from warmpath.lab.simworker.trtllm.blocks.block_key import BlockKey
from warmpath.lab.simworker.trtllm.cache.kv_cache_manager import KVCacheManager
from warmpath.lab.simworker.trtllm.requests.llm_request import ActiveRequest, RequestState


class CapacityScheduler:
    """Chooses requests, and allocates no blocks. At most `max_num_requests` are in flight."""

    def __init__(self, manager: KVCacheManager, max_num_requests: int) -> None:
        self._manager = manager
        self._max_num_requests = max_num_requests
        self._windows = list(manager.windows)

    def most_blocks(self, request: ActiveRequest) -> dict[int, int]:
        """Return window -> the most further blocks that a request can need."""
        return {
            window: self._manager.get_remaining_blocks_to_completion(request.llm, window)
            for window in self._windows
        }

    def schedule(self, active: Sequence[ActiveRequest]) -> list[ActiveRequest]:
        """Return the requests that may run in the next step: those that generate, then by age."""
        contributed = self._contributed_by_running(active)
        available = self._manager.num_free_blocks_per_window
        scheduled: list[ActiveRequest] = []
        pending: list[ActiveRequest] = []
        for request in active:
            if len(scheduled) >= self._max_num_requests:
                break
            if request.state is RequestState.GENERATING:
                scheduled.append(request)
                self._reserve(request, available)
            else:
                pending.append(request)
        # The source keeps the order of arrival. By that, a request that once waited for a younger one's
        # block could lack the blocks which the younger one holds, and neither would ever go on.
        pending.sort(key=lambda request: not request.has_started)
        for request in pending:
            if self._should_wait(request, contributed):
                continue
            if len(scheduled) >= self._max_num_requests or not self._reserve(request, available):
                break
            scheduled.append(request)
        return scheduled

    def _reserve(self, request: ActiveRequest, available: dict[int, int]) -> bool:
        """Subtract a request's future blocks from `available`; return whether there were enough.

        If not, they are subtracted only for a request that generates, as it runs anyway.
        """
        needed = self.most_blocks(request)
        fits = all(needed[window] <= available[window] for window in self._windows)
        if fits or request.state is RequestState.GENERATING:
            for window in self._windows:
                available[window] -= needed[window]
        return fits

    def _contributed_by_running(self, active: Sequence[ActiveRequest]) -> set[BlockKey]:
        """Return each prompt whose context is being computed, to the end of its first new block."""
        if not self._may_wait:
            return set()
        keys = {
            self._manager.find_new_context_block(request.llm)
            for request in active
            if request.state is RequestState.CONTEXT
        }
        return {key for key in keys if key is not None}

    @property
    def _may_wait(self) -> bool:
        manager = self._manager
        return manager.enable_block_reuse and not manager.is_variable_window

    def _should_wait(self, request: ActiveRequest, contributed: set[BlockKey]) -> bool:
        """Whether a request can reuse a prompt in `contributed`; if not, its own prompt is added."""
        if request.state is not RequestState.WAITING or not self._may_wait:
            return False
        key = self._manager.find_new_context_block(request.llm)
        if key is None:
            return False
        if key in contributed:
            return True
        contributed.add(key)
        return False


class MicroBatchScheduler:
    """Fills a step, first come first served: at most `max_batch_size` requests, `max_num_tokens` tokens.

    Source: TensorRT-LLM's `MicroBatchScheduler` (`batch_manager/microBatchScheduler.cpp`, 1.2).

    A context that does not fit is cut at a multiple of `chunk_unit_size` tokens; if that is None, it
    waits until it fits as a whole. Raises ValueError if no chunk would fit into an empty step.
    """

    def __init__(
        self, max_batch_size: int, max_num_tokens: int, chunk_unit_size: int | None
    ) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size is {max_batch_size}; at least 1 is needed")
        if max_num_tokens < (chunk_unit_size or 1):
            raise ValueError(
                f"max_num_tokens is {max_num_tokens}; at least {chunk_unit_size or 1} is needed"
            )
        self._max_batch_size = max_batch_size
        self._max_num_tokens = max_num_tokens
        self._chunk_unit_size = chunk_unit_size

    def schedule(
        self, fitting: Sequence[ActiveRequest]
    ) -> tuple[list[ActiveRequest], list[ActiveRequest]]:
        """Return (requests in context, generating ones), in the order given; set the former's chunks."""
        contexts: list[ActiveRequest] = []
        generating: list[ActiveRequest] = []
        num_tokens = 0
        num_context_tokens = 0
        for request in fitting[: self._max_batch_size]:
            if request.state is RequestState.GENERATING:
                if num_tokens + 1 > self._max_num_tokens:
                    break
                generating.append(request)
                num_tokens += 1
                continue
            length = request.context_remaining_length
            if self._chunk_unit_size is None:
                if num_tokens + length > self._max_num_tokens:
                    break
                num_tokens += length
            request.context_chunk_size = length
            num_context_tokens += length
            contexts.append(request)
        if self._chunk_unit_size is not None:
            room = self._max_num_tokens - num_tokens
            if num_context_tokens > room:
                contexts = self._chunk(contexts, room, self._chunk_unit_size)
        return contexts, generating

    def _chunk(
        self, contexts: list[ActiveRequest], room: int, chunk_unit_size: int
    ) -> list[ActiveRequest]:
        """Cut contexts so that they fit into `room` tokens; return those that get at least one."""
        for request in contexts:
            size = min(room, request.context_remaining_length)
            if size < request.context_remaining_length:
                size -= size % chunk_unit_size
            request.context_chunk_size = size
            room -= size
        return [request for request in contexts if request.context_chunk_size]
