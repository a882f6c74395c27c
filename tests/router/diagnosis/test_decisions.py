"""The ring of last decisions, and candidates as messages."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.router.consistent import check
from tests.router.pick.weighed import choice, option, placed
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.diagnosis.decisions import ENDS, KEPT_CANDIDATES, Decisions
from warmpath.router.load.correction import Part
from warmpath.router.pick.messages import candidate_message, source_message
from warmpath.router.pick.pick import Pick


def test_a_candidate_as_pick_gives_it_has_no_details() -> None:
    one = candidate_message(option("pod-a", 800, arriving=960, wait=0.25), 1000.0)
    assert not one.HasField("details")
    assert (one.pod, one.rank, one.address) == ("pod-a", 0, "pod-a:8000")
    assert (one.matched_tokens, one.believed_tokens, one.outstanding_tokens) == (960, 160, 70)
    assert one.predicted_ttft == one.cost == 0.25 + 0.64
    assert (one.trust.level, one.trust.since) == (pb.Trust.EXACT, 1005.0)


def test_details_say_what_the_cost_is_made_of_and_where_the_load_is_from() -> None:
    parts = [Part("booked wait", 0.25, "bookings", 0.0), Part("queue", 3, "engine", 1.5)]
    details = candidate_message(option("pod-a", 800, arriving=960, wait=0.25), 0.0, parts).details
    assert details.tiers == [pb.TierTokens(tier="gpu", tokens=800)]
    assert (details.arriving_tokens, details.assumed_tokens) == (960, 0)
    assert (details.wait_seconds, details.prefill_seconds) == (0.25, 0.64)
    assert (details.load_source, details.load_age) == ("engine", 1.5)
    assert {term.name: term.value for term in details.terms} == {"wait": 0.25, "prefill": 0.64}
    booked = candidate_message(option("pod-a"), 0.0, parts[:1]).details
    assert booked.load_source == "bookings"
    assert not booked.HasField("load_age")


def test_a_context_beyond_what_a_message_holds_is_told_as_the_most() -> None:
    big = option("pod-a")
    load = big.candidate.load._replace(context_tokens=1 << 40)
    big = big._replace(candidate=big.candidate._replace(load=load))
    assert candidate_message(big, 0.0, ()).details.context_tokens == (1 << 32) - 1


def test_the_source_is_told_with_what_it_is_known_to_hold() -> None:
    made = choice(option("cold"), option("busy", 800, arriving=960, wait=9.0))
    assert made.source is not None
    told = source_message(made.source)
    assert told == pb.Source(pod="busy", address="busy:8000", matched_tokens=800)


def pick(decisions: Decisions, pods: Sequence[str] = "ab", model: str = "m") -> Pick:
    made = choice(*(option(pod, 800 - 16 * at) for at, pod in enumerate(pods)))
    one = placed(made, model=model)
    decisions.picked(one, made)
    return one


def test_a_decision_keeps_its_best_candidates_and_the_reason() -> None:
    decisions = Decisions(wall_offset=lambda: 1000.0)
    pick(decisions, "abcdef")
    (told,) = decisions.listed()
    assert [one.pod for one in told.candidates] == list("abcd")
    assert all(one.HasField("details") for one in told.candidates)
    assert told.reason.startswith("a has 800 of 1,600 tokens cached")
    assert told.at == 1100.0
    assert (told.state, told.pod) == (pb.Decision.PICKED, "a")
    assert not told.HasField("cached_tokens")
    assert not told.HasField("ttft")


@pytest.mark.parametrize("most", [0, 3])
def test_only_the_last_ones_are_kept(most: int) -> None:
    decisions = Decisions(most)
    picks = [pick(decisions) for _ in range(5)]
    for one in picks:
        decisions.ended(one, "expired", 700.0)
    last = [one.booking_id for one in picks[::-1]][:most]
    assert [one.booking_id for one in decisions.listed()] == last
    check(decisions)


class AnyReports(RuleBasedStateMachine):
    """Picks and reports in any order, of decisions that are kept and of others."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions = Decisions(4)
        self.picks: list[Pick] = []
        self.states: dict[str, int] = {}

    @rule(pods=st.permutations("abcdef"), count=st.integers(1, 6))
    def pick(self, pods: list[str], count: int) -> None:
        one = pick(self.decisions, pods[:count])
        self.picks.append(one)
        self.states[one.booking_id] = pb.Decision.PICKED

    @precondition(lambda self: self.picks)
    @rule(data=st.data(), event=st.sampled_from(["started", "first_token", *ENDS]))
    def report(self, data: st.DataObject, event: str) -> None:
        one = data.draw(st.sampled_from(self.picks))
        state = self.states[one.booking_id]
        if event == "started":
            self.decisions.started(one)
            state = max(state, pb.Decision.STARTED)
        elif event == "first_token":
            self.decisions.first_token(one, 102.0)
            state = pb.Decision.FIRST_TOKEN
        else:
            # The picker tells nothing after an end.
            self.picks.remove(one)
            self.decisions.ended(one, event, 103.0)  # type: ignore[arg-type]
            state = ENDS[event]  # type: ignore[index]
        self.states[one.booking_id] = state

    @invariant()
    def the_last_ones_are_listed_as_they_are(self) -> None:
        check(self.decisions)
        last = list(self.states.items())[::-1][:4]
        listed = self.decisions.listed()
        assert [(one.booking_id, one.state) for one in listed] == last
        assert all(len(one.candidates) <= KEPT_CANDIDATES for one in listed)


TestAnyReports = AnyReports.TestCase
TestAnyReports.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
