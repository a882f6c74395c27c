"""The rule of Pick: warmth against outstanding load."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scorer.pick import Candidate, pick


def candidate(pod: str, warmth: float = 0, outstanding: int = 0, in_flight: int = 0) -> Candidate:
    return Candidate(pod, 0, warmth, outstanding, in_flight)


def order(*candidates: Candidate, tokens: int = 100, seed: int = 0) -> list[str]:
    return [ranked.candidate.pod for ranked in pick(candidates, tokens, Random(seed))]


def test_with_equal_load_the_warmest_wins() -> None:
    assert order(candidate("a", 10), candidate("b", 50), candidate("c", 20)) == ["b", "c", "a"]


def test_with_equal_warmth_the_least_loaded_wins() -> None:
    assert order(candidate("a", 10, 30), candidate("b", 10, 5)) == ["b", "a"]


def test_a_warm_pod_that_drowns_loses_to_a_cold_one() -> None:
    assert order(candidate("warm", 90, 200), candidate("cold")) == ["cold", "warm"]


def test_among_equal_costs_fewer_requests_in_flight_win() -> None:
    assert order(candidate("a", 0, 0, 3), candidate("b", 0, 0, 1)) == ["b", "a"]


def test_full_ties_are_not_broken_by_order() -> None:
    firsts = {order(candidate("a"), candidate("b"), candidate("c"), seed=s)[0] for s in range(50)}
    assert firsts == {"a", "b", "c"}


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        pod=st.text(max_size=3),
        rank=st.integers(0, 3),
        warmth=st.integers(0, 100).map(float),
        outstanding=st.integers(0, 300),
        in_flight=st.integers(0, 5),
    ),
    min_size=1,
    max_size=8,
)


@given(CANDIDATES, st.integers(1, 100), st.integers())
def test_no_candidate_that_is_worse_in_everything_is_picked(
    candidates: list[Candidate], tokens: int, seed: int
) -> None:
    ranked = pick(candidates, tokens, Random(seed))
    assert sorted(map(repr, candidates)) == sorted(repr(one.candidate) for one in ranked)
    best = ranked[0].candidate
    for other in candidates:
        worse = (
            other.warmth > best.warmth
            and other.outstanding < best.outstanding
            and other.in_flight < best.in_flight
            and min(other.warmth, best.warmth) < tokens
        )
        assert not worse
