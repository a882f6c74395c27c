"""The choice of the requests and tokens that the next step computes, among requests that may run.

Source: TensorRT-LLM's `MicroBatchScheduler` (`batch_manager/microBatchScheduler.cpp`, 1.2), which cuts
contexts into chunks first come, first served.
"""

from collections.abc import Sequence

from warmpath.lab.simworker.trtllm.requests.llm_request import ActiveRequest, RequestState


class MicroBatchScheduler:
    """Fills a step with at most `max_batch_size` requests and `max_num_tokens` tokens.

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
        """Return (contexts, generating requests), in the order given; set the contexts' chunks."""
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
