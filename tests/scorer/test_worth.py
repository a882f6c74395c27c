"""What cached blocks are worth to a prompt: by each strategy, over several caches, and pulled from a peer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.scorer.columns import PREFILL, TERMS
from warmpath.scorer.match import TIERS, Match, Span, Window, match_of, reusable
from warmpath.scorer.prefill import PrefillModel
from warmpath.scorer.strategies import STRATEGIES
from warmpath.scorer.weigh import warm

SIZE = 16
TOKENS = 1000


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


def engine_search(held: list[bool], needed: int, most: int) -> int:
    """Search as vLLM's SlidingWindowManager.find_longest_cache_hit, block by block from the right."""
    run = 0
    for number in range(most - 1, -1, -1):
        if held[number]:
            run += 1
            if run == needed:
                return number + needed
        else:
            run = 0
    return run


def runs_of(held: list[bool]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number, one in enumerate(held):
        if one and runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        elif one:
            runs.append((number, number + 1))
    return runs


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6), st.data())
def test_a_window_reaches_as_far_as_the_engines_own_search(
    held: list[bool], needed: int, data: st.DataObject
) -> None:
    most = data.draw(st.integers(0, len(held)))
    assert Window(runs_of(held), 1, needed).reach(most) == engine_search(held, needed, most)


def test_a_state_cache_of_larger_blocks_ends_where_its_block_does() -> None:
    assert Window([(7, 8)], step=4, needed=1).reach(20) == 8
    assert Window([(6, 7)], step=4, needed=1).reach(20) == 0


def test_without_windows_the_prefix_counts_as_it_is_aligned() -> None:
    assert reusable(7, [], 1) == 7
    assert reusable(7, [], 4) == 4


@given(
    st.integers(0, 30),
    st.lists(
        st.tuples(st.lists(st.booleans(), min_size=30, max_size=30), st.integers(1, 4)), max_size=3
    ),
    st.integers(1, 4),
)
def test_all_caches_agree_on_the_point_of_reuse(
    prefix: int, caches: list[tuple[list[bool], int]], align: int
) -> None:
    windows = [Window(runs_of(held), 1, needed) for held, needed in caches]
    point = reusable(prefix, windows, align)
    assert point <= prefix
    assert point % align == 0
    for held, needed in caches:
        tail = held[max(0, point - needed) : point]
        assert all(tail)


def seconds(cached: list[int], held: int, model: PrefillModel) -> tuple[list[float], list[float]]:
    """Return the seconds on ranks with these cached tokens, without and with a pull.

    One more rank holds `held`.
    """
    figures = np.zeros((TERMS, len(cached) + 1))
    constants = model.base, model.per_token, model.per_context, model.per_pulled_token
    rows = np.array([(one, 0, 0, 0, 1.0) for one in (*cached, held)], np.float64)
    warm(figures, rows, np.arange(len(rows)), TOKENS, np.array(constants))
    without = [model.seconds(TOKENS - one, one) for one in cached]
    return without, figures[PREFILL, :-1].tolist()


def test_a_cold_rank_pulls_what_the_warmest_one_holds_and_computes_the_rest() -> None:
    model = PrefillModel(per_pulled_token=1e-5)
    _, [cold, warm] = seconds([0, 800], 800, model)
    assert cold == pytest.approx(model.seconds(200, 800) + 800 * 1e-5)
    assert warm == pytest.approx(model.seconds(200, 800))


@given(
    st.lists(st.integers(0, TOKENS - 1), min_size=1), st.integers(0, TOKENS - 1), st.floats(0, 1e-3)
)
def test_no_prefill_takes_longer_and_none_that_has_as_much_changes(
    cached: list[int], held: int, per_token: float
) -> None:
    without, pulled = seconds(cached, held, PrefillModel(per_pulled_token=per_token))
    for tokens, before, after in zip(cached, without, pulled, strict=True):
        assert after <= before
        if tokens >= max(held, *cached):
            assert after == before
