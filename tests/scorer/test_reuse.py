"""Reuse over several caches, against a plain transcription of the engine's own search."""

from hypothesis import given
from hypothesis import strategies as st

from warmpath.scorer.reuse import Window, reusable


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
