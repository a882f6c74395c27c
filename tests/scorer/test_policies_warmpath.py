"""What our own policy promises, whatever its constants."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scorer.ranked import Ranked, rank
from warmpath.scorer.candidate import Candidate, Load, Request
from warmpath.scorer.policies.warmpath import Warmpath

POLICY = Warmpath()

SHARES = st.floats(0, 1)
REQUESTS = st.builds(Request, st.just(1000), SHARES, long_share=SHARES, full_share=SHARES)


def hundredths(most: int) -> st.SearchStrategy[float]:
    """Seconds that differ by what the tie rule tells apart, or not at all."""
    return st.integers(0, most).map(lambda number: number / 100)


REQUESTS_THERE = st.integers(0, 3) | st.integers(0, 100)
LOADS = st.builds(
    lambda wait, waiting, decoding: Load(wait, waiting, waiting + decoding),
    hundredths(1000), REQUESTS_THERE, REQUESTS_THERE,
)  # fmt: skip


def candidates(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[list[Candidate]]:
    """Candidates with any load and prefill, unless `fields` say otherwise."""
    usual = {
        "rank": 0,
        "cached": 0,
        "slowness": 1.0,
        "arriving": 0.0,
        "displaced": 0.0,
        "shared": 0.0,
    }
    made = {name: st.just(figure) for name, figure in usual.items()}
    made |= {"pod": st.sampled_from("abcdefghij"), "prefill": hundredths(500), "load": LOADS}
    some = st.builds(Candidate, **made | fields)
    return st.lists(some, min_size=1, max_size=8, unique_by=lambda one: one.pod)


def one(pod: str, wait: float = 0.0, prefill: float = 0.0, in_flight: int = 0) -> Candidate:
    return Candidate(pod, 0, 0, prefill, Load(wait=wait, in_flight=in_flight))


def winner(*given: Candidate, policy: Warmpath = POLICY, utilisation: float = 0.0) -> str:
    return rank(policy, Request(1000, utilisation), given, Random(0))[0].candidate.pod


def made_of(candidate: Candidate) -> tuple[float, ...]:
    load = candidate.load
    decoding = load.in_flight - load.waiting
    work = candidate.prefill / candidate.slowness
    return load.wait, candidate.prefill, work, load.waiting, decoding


@given(REQUESTS, candidates(slowness=st.sampled_from([0.5, 1.0, 2.0])), st.integers())
def test_no_candidate_that_another_beats_in_every_term_is_picked(
    request: Request, given: list[Candidate], seed: int
) -> None:
    best = made_of(rank(POLICY, request, given, Random(seed))[0].candidate)
    for other in map(made_of, given):
        no_worse = all(theirs <= ours for theirs, ours in zip(other, best, strict=True))
        assert not no_worse or other == best


@given(REQUESTS, candidates(load=st.just(Load(2.0, in_flight=7))))
def test_with_equal_load_the_warmest_wins(request: Request, given: list[Candidate]) -> None:
    best = rank(POLICY, request, given, Random(0))[0].candidate
    assert best.prefill == min(other.prefill for other in given)


@given(REQUESTS, candidates(prefill=st.just(1.5)))
def test_with_equal_warmth_the_least_loaded_wins(request: Request, given: list[Candidate]) -> None:
    waits = sorted(other.load.wait for other in given)
    waiting = sorted(other.load.waiting for other in given)
    decoding = sorted(other.load.in_flight - other.load.waiting for other in given)
    ordered = [
        other._replace(load=Load(wait, behind, behind + beside))
        for other, wait, behind, beside in zip(given, waits, waiting, decoding, strict=True)
    ]
    best = rank(POLICY, request, ordered, Random(0))[0].candidate
    assert best.load == ordered[0].load


def place(ranked: list[Ranked], pod: str) -> int:
    mine = next(other.cost for other in ranked if other.candidate.pod == pod)
    return sum(other.cost < mine for other in ranked)


@given(
    REQUESTS,
    candidates(),
    st.sampled_from(["wait", "prefill", "waiting", "decoding"]),
    st.integers(1, 100),
    st.data(),
)
def test_nothing_that_makes_a_candidate_worse_betters_its_place(
    request: Request, given: list[Candidate], term: str, by: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(0, len(given) - 1))
    before, load = given[chosen], given[chosen].load
    worse = {
        "wait": before._replace(load=load._replace(wait=load.wait + by / 10)),
        "prefill": before._replace(prefill=before.prefill + by / 10),
        "waiting": before._replace(
            load=load._replace(waiting=load.waiting + by, in_flight=load.in_flight + by)
        ),
        "decoding": before._replace(load=load._replace(in_flight=load.in_flight + by)),
    }[term]
    then = rank(POLICY, request, given, Random(0))
    now = rank(POLICY, request, [*given[:chosen], worse, *given[chosen + 1 :]], Random(0))
    assert place(now, before.pod) >= place(then, before.pod)


@given(REQUESTS, candidates())
def test_the_cost_is_the_sum_of_the_terms(request: Request, given: list[Candidate]) -> None:
    for ranked in rank(POLICY, request, given, Random(0)):
        assert ranked.cost == pytest.approx(sum(value for _, value in ranked.terms))


def test_a_warm_pod_that_drowns_loses_to_a_cold_one() -> None:
    assert winner(one("warm", wait=1.9, prefill=0.05), one("cold", prefill=2.0)) == "warm"
    assert winner(one("warm", wait=2.1, prefill=0.05), one("cold", prefill=2.0)) == "cold"


@pytest.mark.parametrize("wait", [0.0, 0.1, 1.0, 9.0])
@pytest.mark.parametrize("arriving", [0.0, 0.5, 5.0])
def test_a_prompt_that_is_on_its_way_is_worth_a_share_of_the_wait_for_it(
    wait: float, arriving: float
) -> None:
    there = one("there", wait=wait, prefill=0.02)._replace(arriving=arriving)
    [ranked] = rank(POLICY, Request(1000), [there], Random(0))
    assert dict(ranked.terms)["wait"] == wait - 0.9 * min(wait, arriving)
    longer = there._replace(load=there.load._replace(wait=wait + 0.1))
    assert rank(POLICY, Request(1000), [longer], Random(0))[0].cost > ranked.cost


def test_work_weighs_no_more_on_a_slow_rank_than_on_any_other() -> None:
    slow = one("slow", prefill=2.0)._replace(slowness=2.0)
    # At 0.9 a second counts 2 x 0.9 / 0.1 = 18 times besides. A second of work, wherever it is done.
    ranked = rank(
        POLICY, Request(1000, 0.9), [slow, one("usual", wait=0.9, prefill=1.0)], Random(0)
    )
    assert [dict(other.terms)["others"] for other in ranked] == pytest.approx([18.0, 18.0])
    assert winner(slow, one("usual", wait=0.9, prefill=1.0), utilisation=0.9) == "usual"
    assert winner(slow, one("usual", wait=1.1, prefill=1.0), utilisation=0.9) == "slow"


def test_the_fuller_the_fleet_the_longer_a_wait_is_worth_a_warm_cache() -> None:
    given = one("warm", wait=3.0, prefill=0.1), one("cold", prefill=2.0)
    # At 0: 3.1 against 2.0. At 0.6 a prefill counts 1 + 2 x 0.6 / 0.4 = 4 times: 3.4 against 8.0.
    assert winner(*given) == "cold"
    assert winner(*given, utilisation=0.6) == "warm"
    assert winner(*given, policy=Warmpath(kappa=0.0), utilisation=0.6) == "cold"


def test_the_terms_are_what_the_docstring_says() -> None:
    policy = Warmpath(g=0.5, mu=0.01)
    given = [Candidate("a", 0, 0, 0.4, Load(wait=1.0, waiting=3, in_flight=18)), one("b", 99.0)]
    ranked = rank(policy, Request(1000, 0.5, long_share=0.05), given, Random(0))
    # Crowded: (1 + 3) / (1 + 1.5) x (1 + 15) / (1 + 7.5), to the power of g / 2: half of a tenth is long.
    assert dict(ranked[0].terms) == pytest.approx(
        {
            "wait": 1.0,
            "prefill": 0.4,
            "others": 2 * 0.4 * (4 / 2.5 * 16 / 8.5) ** 0.25,
            "decode": 0.18,
            "displaced": 0.0,
        }
    )


@pytest.mark.parametrize(("full_share", "chosen"), [(0.0, "cold"), (0.5, "warm")])
def test_where_kv_memory_is_short_no_second_copy_is_made(full_share: float, chosen: str) -> None:
    warm, cold = one("warm", wait=4.0, prefill=0.1), one("cold", prefill=1.0)
    request = Request(1000, 0.5, full_share=full_share)
    assert rank(POLICY, request, [warm, cold], Random(0))[0].candidate.pod == chosen


def test_full_ranks_make_a_prefill_cost_others_as_many_times_as_the_docstring_says() -> None:
    policy, given = Warmpath(memory=4.0), [one("a", prefill=0.4), one("b", prefill=2.0)]

    def others(full_share: float) -> list[float]:
        ranked = rank(policy, Request(1000, 0.5, full_share=full_share), given, Random(0))
        return [dict(option.terms)["others"] for option in ranked]

    assert others(0.25) == pytest.approx([2 * cost for cost in others(0.0)])


def test_a_long_prompt_keeps_off_crowded_ranks_where_a_short_one_does_not() -> None:
    def given(prefill: float) -> list[Candidate]:
        crowded = Candidate("crowded", 0, 0, prefill, Load(wait=0.5, waiting=8, in_flight=30))
        lonely = Candidate("lonely", 0, 0, prefill, Load(wait=1.5, waiting=1, in_flight=4))
        return [crowded, lonely]

    assert winner(*given(0.1), utilisation=0.7) == "crowded"
    assert winner(*given(3.0), utilisation=0.7) == "lonely"


@pytest.mark.parametrize(
    ("long_share", "slow", "chosen"),
    [(0.0, 1.0, "lonely"), (0.1, 1.0, "near"), (1.0, 1.0, "near"), (0.1, 3.0, "lonely"), (0.1, 1.2, "near"), (1.0, 3.0, "near")],
)  # fmt: skip
def test_long_prompts_are_gathered_where_they_are_few_or_ranks_of_unlike_speeds(
    long_share: float, slow: float, chosen: str
) -> None:
    near = Candidate("near", 0, 0, 3.0, Load(wait=0.5, waiting=8, in_flight=30), slowness=slow)
    lonely = Candidate("lonely", 0, 0, 3.0, Load(wait=1.5, waiting=1, in_flight=4), slowness=slow)
    request = Request(1000, utilisation=0.7, long_share=long_share)
    assert rank(POLICY, request, [near, lonely], Random(0))[0].candidate.pod == chosen
