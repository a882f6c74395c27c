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
    max_num_scheduled_tokens: int | None = None
    """The most tokens scheduled in a step, if fewer than `max_num_batched_tokens`; None for the same."""
    max_num_active_seqs: int | None = None
    """The most running requests after an admission, if fewer than `max_num_seqs`; None for the same."""
    policy: str = "fcfs"
    """`fcfs`, or `priority`: lower numbers first."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be computed over several steps. If not, a prompt that does not fit into the
    rest of a step waits for the next."""
    long_prefill_token_threshold: int = 0
    """The most tokens of one request in a step while there are others; 0 for no limit."""
    long_prefill_token_threshold_adaptive: bool = False
    """Whether `long_prefill_token_threshold` grows to each request's even share of the batch."""
    scheduler_reserve_full_isl: bool = True
    """Whether a request is admitted only when blocks for all its tokens are free, not only those for
    its first chunk."""
    num_lookahead_tokens: int = 0
    """Slots beyond the tokens computed, for speculative tokens."""
    max_loras: int = 0
    """The most adapters in one batch; 0 for no limit."""

    def __post_init__(self) -> None:
        """Check every field against its limits."""
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_num_scheduled_tokens", "max_num_active_seqs"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for name in ("long_prefill_token_threshold", "num_lookahead_tokens", "max_loras"):
            _at_least(name, getattr(self, name), 0)
        known = [policy.value for policy in SchedulingPolicy]
        if self.policy not in known:
            raise ValueError(f"policy is {self.policy!r}, not one of {', '.join(known)}")
        if not self.enable_chunked_prefill and self.token_budget < self.max_model_len:
            is_batched = self.token_budget == self.max_num_batched_tokens
            name = "max_num_batched_tokens" if is_batched else "max_num_scheduled_tokens"
            raise ValueError(
                f"{name} is {self.token_budget}, less than max_model_len "
                f"{self.max_model_len}: without chunked prefill longer prompts never run"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than "
                f"max_num_seqs {self.max_num_seqs}"
            )
        if self.most_running > self.max_num_seqs:
            raise ValueError(
                f"max_num_active_seqs is {self.most_running}, more than max_num_seqs "
                f"{self.max_num_seqs}"
            )
        if self.long_prefill_token_threshold > self.max_model_len:
            raise ValueError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold}, more than "
                f"max_model_len {self.max_model_len}"
            )

    @property
    def token_budget(self) -> int:
        """The most tokens that a step may schedule."""
        scheduled = self.max_num_scheduled_tokens
        return min(self.max_num_batched_tokens, scheduled or self.max_num_batched_tokens)

    @property
    def most_running(self) -> int:
        """Number of running requests from which on no further one is admitted."""
        return self.max_num_active_seqs or self.max_num_seqs


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, less than {least}")
