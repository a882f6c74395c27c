"""Settings of the scheduler and its pools.

Source: `SchedulerConfig` and `CacheConfig` in `vllm/config.py` of 0.9.2, with its names, order and
defaults. Fields that change nothing in scheduling or memory are left out.
"""

from dataclasses import dataclass
from typing import Literal

DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
DEFAULT_LONG_PREFILL_SHARE = 0.04
"""A prompt of more than this share of max_model_len is long, if a step may have several partial ones."""


@dataclass(slots=True)
class SchedulerConfig:
    """Limits of a step, and the policy. Raises ValueError naming the field and its limit."""

    max_num_batched_tokens: int = 0
    """The most tokens that one step computes; 0 for 0.9.2's default."""
    max_num_seqs: int = 128
    """The most sequences that one step computes."""
    max_model_len: int = 8192
    """The most tokens of a sequence, prompt and output."""
    max_num_partial_prefills: int = 1
    """The most prompts that one step computes in part, with chunked prefill."""
    max_long_partial_prefills: int = 1
    """The most long prompts that one step computes in part; short ones overtake further long ones."""
    long_prefill_token_threshold: int = 0
    """A prompt of more tokens is long; 0: 4 % of max_model_len if several prompts may be partial."""
    num_lookahead_slots: int = 0
    """Slots kept ready for every sequence beyond its known tokens (speculative decoding)."""
    delay_factor: float = 0.0
    """New prompts wait this multiple of the last prompt step's duration for others to join."""
    enable_chunked_prefill: bool = False
    preemption_mode: Literal["swap", "recompute"] | None = None
    """With None, groups of one sequence are recomputed, groups of several are swapped."""
    num_scheduler_steps: int = 1
    """Tokens decoded between two schedulings; if over 1, set num_lookahead_slots to one less."""
    policy: Literal["fcfs", "priority"] = "fcfs"

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_model_len", "num_scheduler_steps"):
            _at_least(name, getattr(self, name), 1)
        _at_least("num_lookahead_slots", self.num_lookahead_slots, 0)
        _at_least("delay_factor", self.delay_factor, 0)
        _one_of("preemption_mode", self.preemption_mode, (None, "swap", "recompute"))
        _one_of("policy", self.policy, ("fcfs", "priority"))
        if self.policy == "priority" and self.preemption_mode == "swap":
            raise ValueError(
                'policy "priority" takes preemption_mode "recompute" or None, not "swap": 0.9.2 '
                "loses the blocks it swaps out for a request of higher priority"
            )
        if self.max_num_batched_tokens == 0:
            self.max_num_batched_tokens = self._default_max_num_batched_tokens()
        self._check_token_budget()
        self._check_partial_prefills()

    @property
    def is_multi_step(self) -> bool:
        """Whether several tokens are decoded between two schedulings."""
        return self.num_scheduler_steps > 1

    def _default_max_num_batched_tokens(self) -> int:
        tokens = DEFAULT_MAX_NUM_BATCHED_TOKENS
        if not self.enable_chunked_prefill or self.is_multi_step:
            tokens = max(self.max_model_len, tokens)
        return min(self.max_num_seqs * self.max_model_len, tokens)

    def _check_token_budget(self) -> None:
        tokens = self.max_num_batched_tokens
        if tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens {tokens} is less than max_num_seqs {self.max_num_seqs}"
            )
        if tokens < self.max_model_len and not self.enable_chunked_prefill:
            raise ValueError(
                f"max_num_batched_tokens {tokens} is less than max_model_len "
                f"{self.max_model_len}, and enable_chunked_prefill is off"
            )

    def _check_partial_prefills(self) -> None:
        prefills = self.max_num_partial_prefills
        _at_least("max_num_partial_prefills", prefills, 1)
        if not 1 <= self.max_long_partial_prefills <= prefills:
            raise ValueError(
                f"max_long_partial_prefills {self.max_long_partial_prefills} is not between 1 and "
                f"max_num_partial_prefills {prefills}"
            )
        _at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        if prefills == 1:
            return
        if not self.enable_chunked_prefill:
            raise ValueError(
                f"max_num_partial_prefills {prefills} is more than 1, and enable_chunked_prefill "
                "is off"
            )
        if self.long_prefill_token_threshold == 0:
            self.long_prefill_token_threshold = int(self.max_model_len * DEFAULT_LONG_PREFILL_SHARE)
        if self.long_prefill_token_threshold > self.max_model_len:
            raise ValueError(
                f"long_prefill_token_threshold {self.long_prefill_token_threshold} is more than "
                f"max_model_len {self.max_model_len}"
            )


@dataclass(slots=True)
class CacheConfig:
    """Settings of the GPU's and CPU's pools of blocks. Raises ValueError naming field and limit."""

    block_size: int = 16
    sliding_window: int | None = None
    """Tokens back that attention reads; None for all."""
    enable_prefix_caching: bool | None = None
    num_gpu_blocks: int | None = None
    num_cpu_blocks: int | None = None

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        if self.sliding_window is not None:
            _at_least("sliding_window", self.sliding_window, 1)
            if self.enable_prefix_caching:
                raise ValueError(
                    f"sliding_window {self.sliding_window} and enable_prefix_caching exclude each "
                    "other"
                )


def _at_least(name: str, value: float, limit: int) -> None:
    if value < limit:
        raise ValueError(f"{name} {value} is less than {limit}")


def _one_of(name: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} {value!r} is none of {', '.join(map(repr, known))}")
