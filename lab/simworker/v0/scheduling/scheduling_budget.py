"""The budget of a step: tokens to compute, and sequences.

Source: `SchedulingBudget` in `vllm/core/scheduler.py` of 0.9.2.
"""

from dataclasses import dataclass, field

from warmpath.lab.simworker.engine import BrokenInvariantError


@dataclass(slots=True)
class SchedulingBudget:
    """A budget that knows each request's share: a request counts once, however often it is added.

    This is needed because the default policy counts the running sequences before it schedules them, so
    that prefills leave room for them, and counts them again when it does.
    """

    token_budget: int
    max_num_seqs: int
    _tokens: dict[str, int] = field(default_factory=dict)
    _seqs: dict[str, int] = field(default_factory=dict)
    num_batched_tokens: int = 0
    """Tokens of this step that are computed."""
    num_curr_seqs: int = 0
    num_cached_tokens: int = 0
    """Tokens of this step found in the prefix cache, which cost nothing."""

    def can_schedule(self, *, num_new_tokens: int, num_new_seqs: int) -> bool:
        """Whether these fit too. 0 tokens are allowed, as all may be cached; 0 sequences are not."""
        assert num_new_tokens >= 0
        assert num_new_seqs > 0
        return (
            num_new_tokens <= self.remaining_token_budget()
            and self.num_curr_seqs + num_new_seqs <= self.max_num_seqs
        )

    def remaining_token_budget(self) -> int:
        """Tokens that may still be computed."""
        return self.token_budget - self.num_batched_tokens

    def add_num_batched_tokens(
        self, req_id: str, num_batched_tokens: int, num_cached_tokens: int = 0
    ) -> None:
        """Count a request's tokens, unless they are counted already."""
        assert num_batched_tokens >= 0
        assert num_cached_tokens >= 0
        if req_id in self._tokens:
            return
        self._tokens[req_id] = num_batched_tokens
        self.num_batched_tokens += num_batched_tokens
        self.num_cached_tokens += num_cached_tokens

    def add_num_seqs(self, req_id: str, num_curr_seqs: int) -> None:
        """Count a request's sequences, unless they are counted already."""
        if req_id not in self._seqs:
            self._seqs[req_id] = num_curr_seqs
            self.num_curr_seqs += num_curr_seqs

    def subtract_num_seqs(self, req_id: str, num_curr_seqs: int) -> None:
        """Stop counting a request's sequences, if they are counted."""
        if req_id in self._seqs:
            counted = self._seqs.pop(req_id)
            assert counted == num_curr_seqs
            self.num_curr_seqs -= num_curr_seqs

    def check(self) -> None:
        """Raise BrokenInvariantError unless totals are the sums of the counts and within the limits."""
        if self.num_batched_tokens != sum(self._tokens.values()):
            raise BrokenInvariantError(
                f"{self.num_batched_tokens} tokens counted, but by request {self._tokens}"
            )
        if self.num_curr_seqs != sum(self._seqs.values()):
            raise BrokenInvariantError(
                f"{self.num_curr_seqs} sequences counted, but by request {self._seqs}"
            )
        if self.num_batched_tokens > self.token_budget:
            raise BrokenInvariantError(
                f"{self.num_batched_tokens} tokens in a budget of {self.token_budget}"
            )
        if self.num_curr_seqs > self.max_num_seqs:
            raise BrokenInvariantError(
                f"{self.num_curr_seqs} sequences where {self.max_num_seqs} are allowed"
            )
