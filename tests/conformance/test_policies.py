"""One suite for every policy that is registered."""

import math
from dataclasses import fields
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scorer.ranked import Ranked, rank
from warmpath.scorer.candidate import Candidate, Load, Request
from warmpath.scorer.policy import Policy, make_policy, policy_names
from warmpath.scorer.weigh import rounded

NAMES = policy_names()

POLICIES = {name: make_policy(name) for name in NAMES}

SEEDS = range(50)

KNOWN = {(pod, rank): 64 * (len(pod) + ord(pod) % 4) for pod in "abcdef" for rank in range(3)}
"""Known tokens of the candidates that are drawn."""


@pytest.fixture(params=NAMES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return POLICIES[request.param]


def loads(most: int) -> st.SearchStrategy[Load]:
    numbers = st.integers(0, 4) | st.integers(0, most)
    return st.builds(
        Load,
        wait=st.sampled_from([0.0, 0.5]) | st.floats(0, most, allow_subnormal=False),
        waiting=numbers,
        in_flight=numbers,
        waiting_uncached_tokens=numbers,
        waiting_prompt_tokens=numbers,
        context_tokens=numbers,
        queue=numbers,
        kv_usage=st.sampled_from([0.0, 1.0]) | st.floats(0, 1),
        last_pick=numbers,
    )


@st.composite
def questions(draw: st.DrawFn, most: int = 100_000) -> tuple[Request, list[Candidate]]:
    request = draw(
        st.builds(
            Request,
            prompt_tokens=st.integers(1, most),
            utilisation=st.floats(0, 1),
            long_share=st.floats(0, 1),
            full_share=st.floats(0, 1),
            affinity=st.sampled_from(["", "session"]),
        )
    )
    candidates = draw(
        st.lists(
            st.builds(
                Candidate,
                pod=st.sampled_from("abcdef"),
                rank=st.integers(0, 2),
                cached=st.sampled_from([0, request.prompt_tokens - 1])
                | st.integers(0, request.prompt_tokens - 1),
                prefill=st.floats(0, most, allow_subnormal=False),
                load=loads(most),
                slowness=st.floats(0.01, 100),
                arriving=st.floats(0, most, allow_subnormal=False),
                displaced=st.floats(0, most, allow_subnormal=False),
            ),
            min_size=1,
            max_size=8,
            unique_by=lambda one: (one.pod, one.rank),
        )
    )
    return request, candidates


def test_a_prompt_of_which_no_token_is_known_is_placed_too(policy: Policy) -> None:
    candidates = [
        Candidate("a", 0, 0, 0.02),
        Candidate("b", 0, 0, 0.02, Load(1.0, 2, 3, 500, 1000)),
    ]
    assert len(rank(policy, Request(0, 0.5), candidates, Random(1))) == 2


def by_name(ranked: list[Ranked]) -> dict[tuple[str, int], float]:
    return {(one.candidate.pod, one.candidate.rank): one.cost for one in ranked}


@given(questions(), st.integers())
def test_each_candidate_comes_exactly_once_and_dearer_ones_later(
    question: tuple[Request, list[Candidate]], seed: int
) -> None:
    request, candidates = question
    for name, policy in POLICIES.items():
        ranked = rank(policy, request, candidates, Random(seed), KNOWN)
        assert sorted(map(repr, candidates)) == sorted(repr(one.candidate) for one in ranked), name
        costs = [rounded(one.cost) for one in ranked]
        assert (np.diff(costs) >= 0).all(), name


@given(questions(), st.integers())
def test_the_same_seed_gives_the_same_answer(
    question: tuple[Request, list[Candidate]], seed: int
) -> None:
    request, candidates = question
    for name, policy in POLICIES.items():
        first = rank(policy, request, candidates, Random(seed), KNOWN)
        rank(policy, Request(7, affinity="another"), candidates[::-1], Random(1))
        assert rank(policy, request, candidates, Random(seed), KNOWN) == first, name


@given(questions(), st.data())
def test_no_cost_depends_on_the_order_in_which_candidates_are_given(
    question: tuple[Request, list[Candidate]], data: st.DataObject
) -> None:
    request, candidates = question
    shuffled = data.draw(st.permutations(candidates))
    for name, policy in POLICIES.items():
        costs = by_name(rank(policy, request, candidates, Random(1), KNOWN))
        if name != "random":
            assert by_name(rank(policy, request, shuffled, Random(2), KNOWN)) == costs, name


def test_who_can_win_does_not_depend_on_the_order_given(policy: Policy) -> None:
    candidates = [
        Candidate("warm", 0, 900, 0.1, Load(1.0, 2, 3, 500, 1000, 3000, 2, 0.5, 9)),
        Candidate("cold", 0, 0, 0.5, Load(last_pick=3)),
        Candidate("cold", 1, 0, 0.5, Load(last_pick=3)),
    ]
    request = Request(1000, 0.5)
    winners = [
        {rank(policy, request, given, Random(seed))[0].candidate for seed in SEEDS}
        for given in permutations(candidates)
    ]
    assert all(one == winners[0] for one in winners)


@given(questions(most=2**53), st.integers())
def test_costs_and_terms_are_finite_and_no_less_than_zero_however_great_the_values(
    question: tuple[Request, list[Candidate]], seed: int
) -> None:
    request, candidates = question
    for name, policy in POLICIES.items():
        for one in rank(policy, request, candidates, Random(seed), KNOWN):
            values = [one.cost, *(value for _, value in one.terms)]
            assert all(math.isfinite(value) and value >= 0 for value in values), name


def test_every_candidate_has_the_same_terms_each_once(policy: Policy) -> None:
    candidates = [
        Candidate("a", 0, 900, 0.1),
        Candidate("b", 0, 0, 0.5, Load(1.0, 9, 90, 9, 90_000)),
    ]
    for request in (Request(1000), Request(1000, 0.9, "session")):
        names = [
            [name for name, _ in one.terms] for one in rank(policy, request, candidates, Random(0))
        ]
        assert names[0] == names[1]
        assert len(set(names[0])) == len(names[0])


def test_every_one_of_equal_candidates_wins_some_time(policy: Policy) -> None:
    load = Load(1.0, 2, 3, 500, 1000, 3000, 2, 0.5, 9)
    candidates = [Candidate(pod, 0, 500, 0.3, load) for pod in "abcde"]
    winners = {
        rank(policy, Request(1000, 0.5), candidates, Random(seed))[0].candidate.pod
        for seed in SEEDS
    }
    assert winners == set("abcde")


@pytest.mark.parametrize("affinity", ["", "session"])
def test_a_single_candidate_is_the_answer(policy: Policy, affinity: str) -> None:
    for candidate in (
        Candidate("a", 0, 0, 0.0),
        Candidate("a", 0, 0, 5.0, Load(9.0, 10, 10**6, 10**6, 10**6, 10**6, 100, 1.0, 5), True),
    ):
        ranked = rank(policy, Request(1, 1.0, affinity), [candidate], Random(0))
        assert [one.candidate for one in ranked] == [candidate]


OPTIONS = [
    (name, option)
    for name in NAMES
    for option in (field.name for field in fields(POLICIES[name]))  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_is_a_float_and_refuses_what_is_no_sensible_number(
    name: str, option: str
) -> None:
    kebab = option.replace("_", "-")
    default: Any = getattr(make_policy(name), option)
    assert type(default) is float
    assert getattr(make_policy(name, {kebab: default}), option) == default
    for value in (math.nan, math.inf, -math.inf, -1.0, 1e10):
        with pytest.raises(ValueError, match=rf"^option {kebab} is .*allowed$"):
            make_policy(name, {kebab: value})
