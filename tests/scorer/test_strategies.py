"""The strategies, on matches whose results differ between them and on any match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.scorer.match import TIERS, Match, Span, match_of
from warmpath.scorer.strategies import STRATEGIES

SIZE = 16


@pytest.mark.parametrize(
    ("name", "spans", "blocks"),
    [
        # It ends at the first gap, which may be the first block.
        ("longest-prefix", [(0, 3, "gpu"), (3, 5, "cpu"), (7, 9, "gpu")], 5),
        ("longest-prefix", [(1, 9, "gpu")], 0),
        # The deepest, whatever is missing.
        ("highest-block", [(2, 3, "gpu"), (7, 9, "gpu")], 9),
        ("coverage", [(0, 2, "gpu"), (7, 9, "disk")], 4),
        ("tiered", [(0, 2, "gpu"), (2, 3, "cpu"), (5, 9, "gpu")], 2 + 0.8),
    ],
)
def test_strategies_score_as_described(
    name: str, spans: list[tuple[int, int, str]], blocks: float
) -> None:
    assert STRATEGIES[name](Match(tuple(Span(*span) for span in spans), SIZE)) == blocks * SIZE


def test_a_block_in_two_tiers_counts_in_the_faster() -> None:
    match = match_of([(5, 6, "gpu"), (0, 4, "disk"), (0, 2, "cpu"), (0, 2, "gpu")], SIZE)
    assert match.spans == (Span(0, 2, "gpu"), Span(2, 4, "disk"), Span(5, 6, "gpu"))
    assert match.tokens_by_tier == {"gpu": 2 * SIZE, "disk": 2 * SIZE}


STRETCHES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 5), st.sampled_from(TIERS)), max_size=8
)


@given(STRETCHES)
def test_strategies_keep_their_order_on_any_match(held: list[tuple[int, int, str]]) -> None:
    stretches = [(start, start + length, tier) for start, length, tier in held]
    match = match_of(stretches, SIZE)
    for block in range(20):
        tiers = [tier for start, stop, tier in stretches if start <= block < stop]
        [*found] = [span.tier for span in match.spans if span.start <= block < span.stop]
        assert found == sorted(tiers, key=TIERS.index)[:1]
    depth = max((stop for _, stop, _ in stretches), default=0)
    scores = {name: strategy(match) for name, strategy in STRATEGIES.items()}
    assert 0 <= scores["tiered"] <= scores["longest-prefix"] <= scores["coverage"]
    assert scores["coverage"] <= scores["highest-block"] <= depth * SIZE
    assert sum(match.tokens_by_tier.values()) == scores["longest-prefix"]
