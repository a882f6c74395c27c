"""llm-d's unit, against llm-d's rule taken block by block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.calls.llmd import weighted_blocks
from warmpath.scorer.match import TIERS, match_of

LLMD = {"gpu": 1.0, "cpu": 0.8, "disk": 1.0, "remote": 1.0}

stretches = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 6), st.sampled_from(TIERS)).map(
        lambda one: (one[0], one[0] + one[1], one[2])
    ),
    max_size=8,
)
weights = st.fixed_dictionaries({tier: st.sampled_from([0.0, 0.25, 0.8, 1.0]) for tier in TIERS})


def test_llmds_own_examples_score_the_same() -> None:
    # `TestLongestPrefixScorer` and `TestLongestPrefixScorerDifferentTiers` of kvblock_scorer_test.go.
    weights = LLMD | {"cpu": 0.5}
    both = match_of([(0, 3, "gpu"), (2, 3, "cpu"), (5, 6, "gpu")], 16)
    assert weighted_blocks(both, 16, weights) == 3.0
    apart = match_of([(0, 2, "gpu"), (2, 3, "cpu"), (5, 6, "gpu")], 16)
    assert weighted_blocks(apart, 16, weights) == 2.5
    assert weighted_blocks(match_of([(3, 5, "cpu")], 16), 16, weights) is None


def test_a_block_in_several_tiers_has_the_highest_of_their_weights() -> None:
    match = match_of([(0, 2, "cpu"), (1, 3, "disk")], 16)
    assert weighted_blocks(match, 16, LLMD) == 0.8 + 1.0 + 1.0


@given(stretches, weights)
def test_each_leading_block_counts_with_the_weight_of_its_heaviest_tier(
    held: list[tuple[int, int, str]], weight: dict[str, float]
) -> None:
    expected = 0.0
    block = 0
    while tiers := [tier for start, stop, tier in held if start <= block < stop]:
        expected += max(weight[tier] for tier in tiers)
        block += 1
    score = weighted_blocks(match_of(held, 16), 16, weight)
    assert score == (pytest.approx(expected) if block else None)


@given(stretches, weights, st.sampled_from([(16, 64), (64, 16), (24, 16), (16, 24), (5, 3)]))
def test_blocks_of_another_size_are_whole_and_as_heavy_as_their_lightest_part(
    held: list[tuple[int, int, str]], weight: dict[str, float], sizes: tuple[int, int]
) -> None:
    engines, llmds = sizes
    tokens: list[float] = []
    while tiers := [tier for start, stop, tier in held if start <= len(tokens) // engines < stop]:
        tokens += [max(weight[tier] for tier in tiers)] * engines
    whole = len(tokens) // llmds
    expected = sum(min(tokens[at * llmds : (at + 1) * llmds]) for at in range(whole))
    score = weighted_blocks(match_of(held, engines), llmds, weight)
    assert score == (pytest.approx(expected) if whole else None)
