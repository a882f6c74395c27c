"""The tokens and requests that a step of v0 may still take."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.lab.simworker.state_machines import LONG
from warmpath.lab.simworker.engine import BrokenInvariantError
from warmpath.lab.simworker.v0.scheduling.scheduling_budget import SchedulingBudget


@pytest.mark.parametrize(
    ("field", "reason"), [("num_batched_tokens", "tokens"), ("num_curr_seqs", "sequences")]
)
def test_totals_that_are_not_the_sum_or_over_a_limit_are_noticed(field: str, reason: str) -> None:
    budget = SchedulingBudget(token_budget=10, max_num_seqs=10)
    budget.check()
    setattr(budget, field, 1)
    with pytest.raises(BrokenInvariantError, match=f"1 {reason} counted"):
        budget.check()
    setattr(budget, field, 0)
    budget.add_num_batched_tokens("a", 11 if reason == "tokens" else 0)
    budget.add_num_seqs("a", 1 if reason == "tokens" else 11)
    with pytest.raises(BrokenInvariantError, match=f"11 {reason} (in|where)"):
        budget.check()


class BudgetMachine(RuleBasedStateMachine):
    """Against two plain dictionaries of what each request has."""

    @initialize(tokens=st.integers(0, 30), seqs=st.integers(0, 8))
    def begin(self, tokens: int, seqs: int) -> None:
        self.budget = SchedulingBudget(tokens, seqs)
        self.tokens: dict[str, int] = {}
        self.seqs: dict[str, int] = {}
        self.cached = 0

    @rule(request=st.sampled_from("abcdef"), tokens=st.integers(0, 12), cached=st.integers(0, 5))
    def add_tokens(self, request: str, tokens: int, cached: int) -> None:
        fits = sum(self.tokens.values()) + tokens <= self.budget.token_budget
        room = sum(self.seqs.values()) + 1 <= self.budget.max_num_seqs
        assert self.budget.can_schedule(num_new_tokens=tokens, num_new_seqs=1) == (fits and room)
        if fits:
            self.budget.add_num_batched_tokens(request, tokens, cached)
            if request not in self.tokens:
                self.tokens[request] = tokens
                self.cached += cached

    @rule(request=st.sampled_from("abcdef"), seqs=st.integers(1, 4))
    def add_seqs(self, request: str, seqs: int) -> None:
        if sum(self.seqs.values()) + seqs <= self.budget.max_num_seqs:
            self.budget.add_num_seqs(request, seqs)
            self.seqs.setdefault(request, seqs)

    @rule(request=st.sampled_from("abcdef"))
    def subtract(self, request: str) -> None:
        self.budget.subtract_num_seqs(request, self.seqs.pop(request, 1))

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "budget"):
            self.budget.check()
            assert self.budget.num_batched_tokens == sum(self.tokens.values())
            assert self.budget.num_curr_seqs == sum(self.seqs.values())
            assert self.budget.num_cached_tokens == self.cached


TestBudget = BudgetMachine.TestCase
TestBudget.settings = LONG
