"""The sentence why the winner won: specific, and never against the numbers."""

import re
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scorer.ranked import figures, rank, ranked
from warmpath.indexer.trust import Level, Trust
from warmpath.process.command_line import seconds
from warmpath.router.pick.options import Option
from warmpath.router.pick.reason import Reason
from warmpath.scorer.candidate import Candidate, Load, Request
from warmpath.scorer.columns import Costs
from warmpath.scorer.match import Match, Span
from warmpath.scorer.policy import costs_seconds, make_policy, policy_names

TOKENS = 9000


def weighed(
    candidate: Candidate, match: Match, trust: str, terms: tuple[tuple[str, float], ...]
) -> Option:
    cost = sum(value for _, value in terms)
    believed = Trust(Level(trust), "", 0.0)
    return Option(candidate, match, believed, cost, terms, 1.0, "", True, 0, True)


def contender(
    pod: str,
    held: int = 0,
    wait: float = 0.0,
    *,
    rank: int = 0,
    in_flight: int = 0,
    prefill: float | None = None,
    counted: int | None = None,
    believed: int = 0,
    trust: str = "exact",
) -> Option:
    """Return a candidate whose prefill takes a second for 10,000 tokens."""
    cached = held if counted is None else counted
    prefill = (TOKENS - cached) * 1e-4 if prefill is None else prefill
    candidate = Candidate(pod, rank, cached, prefill, Load(wait=wait, in_flight=in_flight))
    terms = (("wait", wait), ("prefill", prefill), ("decode", in_flight * 0.002))
    known = held - believed
    match = Match((Span(0, known, "gpu"),) if known else (), 1, assumed_tokens=believed and held)
    return weighed(candidate, match, trust, terms)


def told(*contenders: Option, policy: str = "warmpath") -> str:
    by_name = {(one.candidate.pod, one.candidate.rank): one for one in contenders}
    candidates = [one.candidate for one in contenders]
    costs = Costs(np.array([one.cost for one in contenders]))
    ordered = ranked(costs, figures(candidates), candidates, Random(0))
    reason = Reason(
        TOKENS,
        [by_name[one.candidate.pod, one.candidate.rank] for one in ordered],
        policy,
        costs_seconds=policy == "warmpath",
        names_ranks=len({one.candidate.pod for one in contenders}) < len(contenders),
    )
    return str(reason)


def test_the_only_candidate_is_called_that() -> None:
    assert told(contender("pod-3", 8192)) == (
        "pod-3 is the only candidate; it has 8,192 of 9,000 tokens cached and nothing waiting."
    )


def test_the_warmest_and_least_loaded_is_told_with_what_the_next_would_cost() -> None:
    assert told(contender("pod-3", 8192), contender("pod-1", 8192, 0.41, in_flight=2)) == (
        "pod-3 has 8,192 of 9,000 tokens cached and nothing waiting; "
        "pod-1, next, would take 0.41 s longer: 0.41 s of work are queued there."
    )
    assert told(contender("pod-3", 8192), contender("pod-1", 4096)) == (
        "pod-3 has 8,192 of 9,000 tokens cached and nothing waiting; "
        "pod-1, next, would take 0.41 s longer: its prefill takes 0.49 s (4,904 tokens to compute)."
    )


def test_a_warm_pod_that_is_busy_was_passed_over_for_its_queue() -> None:
    sentence = told(contender("pod-1", 8192, 2.1, in_flight=5), contender("pod-3"), contender("c"))
    assert "no candidate" not in sentence
    assert sentence.startswith(("pod-3 has none of 9,000", "c has none of 9,000"))
    cold = told(contender("pod-1", 8192, 2.1, in_flight=5), contender("pod-3", 512))
    assert cold == (
        "pod-3 has 512 of 9,000 tokens cached and nothing waiting; "
        "pod-1 holds more (8,192 tokens) but 2.1 s of work are queued there."
    )


def test_a_prefill_that_would_hold_up_others_is_told_with_how_many_there_are() -> None:
    for in_flight, among in (
        (3, " (3 requests in flight)"),
        (1, " (1 request in flight)"),
        (0, ""),
    ):
        cold = contender("b", in_flight=in_flight)
        cold = cold._replace(terms=(*cold.terms, ("others", 2.0)), cost=cold.cost + 2.0)
        assert told(contender("a", 8192), cold).endswith(
            f"its prefill of 9,000 tokens would delay the requests that come after it{among}."
        )


def test_a_warm_pod_of_which_the_view_is_doubtful_may_hold_more() -> None:
    stale = contender("pod-1", 8192, counted=4096, trust="stale")
    assert told(stale, contender("pod-3", 6000)).endswith(
        "pod-1 may hold more (8,192 tokens; only 4,096 count, as the view of its cache is stale) but "
        "its prefill takes 0.49 s (4,904 tokens to compute)."
    )


def test_where_all_are_cold_that_is_said_once() -> None:
    assert told(contender("pod-3"), contender("pod-1", wait=0.05, in_flight=1)) == (
        "no candidate has any of the 9,000 tokens cached, and pod-3 has nothing waiting; "
        "pod-1, next, would take 50 ms longer: 50 ms of work are queued there."
    )


def test_a_tie_names_the_rule_that_broke_it() -> None:
    one, two = contender("a", 100, prefill=0.1), contender("b", 50, prefill=0.1)
    assert told(one, two).endswith(
        "b costs the same, and has fewer tokens cached (50 against 100)."
    )
    busy = contender("b", 100, prefill=0.098, in_flight=1)
    assert told(one, busy).endswith(
        "b costs the same, and has more requests in flight (1 against 0)."
    )
    assert told(one, contender("b", 100, prefill=0.1)).endswith(
        "costs the same, and a random draw decided."
    )


def test_what_is_only_believed_is_marked() -> None:
    assert "8,192 of 9,000 tokens cached (4,096 of them not confirmed by events)" in told(
        contender("a", 8192, believed=4096), contender("b")
    )


def test_ranks_of_one_pod_are_told_apart() -> None:
    sentence = told(contender("a", 8192, rank=1), contender("a", 4096))
    assert sentence.startswith("a rank 1 has 8,192")
    assert "a rank 0, next" in sentence


def test_a_policy_without_seconds_is_told_by_its_own_terms() -> None:
    idle, busy = (
        weighed(
            Candidate(pod, 0, 0, 1.0, Load(in_flight=n)),
            Match((), 0),
            "exact",
            (("requests", 200.0 * n),),
        )
        for pod, n in (("pod-3", 0), ("pod-1", 2))
    )
    assert told(idle, busy, policy="least-load") == (
        "least-load puts pod-3 first: its cost is 0 (requests 0); pod-1, next, costs 400 (requests 400)."
    )
    drawn = idle._replace(candidate=Candidate("a", 0, 0, 1.0), cost=0.25, terms=())
    assert told(drawn, busy, policy="random").startswith("random puts a first: its cost is 0.25; ")


def test_durations_have_two_digits_that_count() -> None:
    durations = [0.0001, 0.0414, 0.41, 0.6, 2.14, 12.3, 1234.5]
    told_ones = ["less than 1 ms", "41 ms", "0.41 s", "0.6 s", "2.1 s", "12 s", "1,234 s"]
    assert [seconds(one) for one in durations] == told_ones


CONTENDERS = st.lists(
    st.builds(
        contender,
        pod=st.sampled_from(["pa", "pb", "pc", "pd"]),
        held=st.integers(0, TOKENS - 1),
        wait=st.sampled_from([0.0, 0.1, 0.7, 3.0]),
        in_flight=st.integers(0, 40),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda one: one.candidate.pod,
)


def number(text: str) -> int:
    return int(text.replace(",", ""))


@given(CONTENDERS)
def test_the_sentence_names_the_winner_and_says_nothing_that_the_numbers_do_not(
    contenders: list[Option],
) -> None:
    by_pod = {one.candidate.pod: one for one in contenders}
    winner = min(contenders, key=lambda one: one.cost)
    sentence = told(*contenders)
    name = winner.candidate.pod
    tied = [one for one in contenders if abs(one.cost - winner.cost) < 1e-6]
    assert any(one.candidate.pod in sentence for one in tied)
    if len(tied) > 1:
        return
    assert re.search(rf"\b{name} (has|is)", sentence)
    if holds := re.search(r"(\w+) holds more \(([\d,]+) tokens\)", sentence):
        other = by_pod[holds[1]]
        assert number(holds[2]) == other.match.matched_tokens > winner.match.matched_tokens
    if cached := re.search(r"(\w+) (?:is the only candidate; it )?has ([\d,]+) of 9,000", sentence):
        assert number(cached[2]) == by_pod[cached[1]].match.matched_tokens
    if queued := re.search(r"(\w+)\b[^;]* ([\d.]+) s of work are queued there", sentence):
        wait = by_pod[queued[1]].candidate.load.wait
        assert wait == float(queued[2]) > winner.candidate.load.wait
    if longer := re.search(r"(\w+), next, would take ([\d.]+) s longer", sentence):
        one, best = by_pod[longer[1]].candidate, winner.candidate
        more = one.load.wait + one.prefill - best.load.wait - best.prefill
        assert abs(more - float(longer[2])) <= 0.05 * more
    if "nothing waiting" in sentence:
        assert not winner.candidate.load.wait
    if "no candidate has any" in sentence:
        assert not any(one.match.matched_tokens for one in contenders)


@pytest.mark.parametrize("policy", policy_names())
@given(contenders=CONTENDERS, seed=st.integers(0, 9), affinity=st.sampled_from(["", "s"]))
def test_every_policy_has_a_sentence_and_costs_in_seconds_are_sums_of_their_terms(
    policy: str, contenders: list[Option], seed: int, affinity: str
) -> None:
    by_pod = {one.candidate.pod: one for one in contenders}
    candidates = [one.candidate for one in contenders]
    made = make_policy(policy)
    ordered = rank(made, Request(TOKENS, 0.7, affinity), candidates, Random(seed))
    weighed = [
        by_pod[one.candidate.pod]._replace(cost=one.cost, terms=one.terms) for one in ordered
    ]
    sentence = str(Reason(TOKENS, weighed, policy, costs_seconds(made)))
    winner = weighed[0]
    assert re.search(
        rf"\b{winner.candidate.pod} (has|is)|puts {winner.candidate.pod} first", sentence
    )
    if costs_seconds(made):
        for one in weighed:
            assert one.cost == pytest.approx(sum(value for _, value in one.terms))
    if holds := re.search(r"(\w+) holds more", sentence):
        assert by_pod[holds[1]].match.matched_tokens > winner.match.matched_tokens
    if queued := re.search(r"(\w+)\b[^;]* of work are queued there", sentence):
        assert by_pod[queued[1]].candidate.load.wait > winner.candidate.load.wait


def test_a_prompt_that_is_not_known_is_said_to_be_estimated_not_uncached() -> None:
    weighed = [contender("pod-1"), contender("pod-2", wait=1.0)]
    sentence = str(Reason(TOKENS, weighed, "warmpath", costs_seconds=True, unread=TOKENS))
    assert sentence.startswith("the prompt is not known (its 9,000 tokens are estimated)")
    assert "any of the" not in sentence
