"""A request between its submission and its end."""

from dataclasses import dataclass
from enum import Enum

from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.trtllm.requests.llm_request import LlmRequest


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
