"""A scheduler's settings, checked.

Names, defaults and limits are those of `vllm/config/scheduler.py` of 0.32. Its `max_num_batched_tokens`
and `max_num_seqs` are the defaults for an unknown device; on an H100 the command line raises them to
8,192 and 1,024.
"""

from dataclasses import dataclass
from enum import Enum

from warmpath.lab.simworker.v1.scheduling.request_queue import SchedulingPolicy


class PauseState(Enum):
    """The part of the scheduler that is paused."""

    UNPAUSED = 0
    PAUSED_NEW = 1
    """No waiting request is admitted; running ones go on."""
    PAUSED_ALL = 2
    """No request is scheduled."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step. Raises ValueError, naming the field, for settings that vLLM refuses."""

    max_model_len: int
    """The most tokens of a request, prompt and answer together."""
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    """The most tokens computed in one step, of all requests together."""
    policy: str = "fcfs"
    """`fcfs`, or `priority`: lower numbers first."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be computed over several steps. If not, a prompt that does not fit into the
    rest of a step waits for the next."""

    def __post_init__(self) -> None:
        """Check every field against its limits."""
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            _at_least(name, getattr(self, name), 1)
        known = [policy.value for policy in SchedulingPolicy]
        if self.policy not in known:
            raise ValueError(f"policy is {self.policy!r}, not one of {', '.join(known)}")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than max_model_len "
                f"{self.max_model_len}: without chunked prefill longer prompts never run"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than "
                f"max_num_seqs {self.max_num_seqs}"
            )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, less than {least}")
