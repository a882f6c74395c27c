"""Full batches, learned from the numbers of running and waiting requests."""

from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.load.batches import FORGOTTEN, SETTLED, Batches
from warmpath.router.load.engine_metrics import Observed

RANK = ("pod-1", 0)
LIMIT = 128
SOON = SETTLED / LIMIT
"""Seconds after which 128 running requests count as the limit."""


def full(batches: Batches, running: int, waiting: int, at: float) -> bool:
    return batches.is_full(RANK, Observed(running, waiting, 0.0, at))


def full_at_its_limit() -> Batches:
    batches = Batches()
    assert not full(batches, LIMIT, 9, 0.0)
    assert full(batches, LIMIT, 9, SOON)
    return batches


def test_a_highest_number_that_stays_while_others_wait_is_a_full_batch() -> None:
    batches = Batches()
    assert [full(batches, LIMIT, 9, at) for at in (0.0, SOON / 2, SOON, 2 * SOON)] == [
        False,
        False,
        True,
        True,
    ]


def test_few_running_requests_take_longer_to_count_since_fewer_of_them_end() -> None:
    batches = Batches()
    assert not full(batches, 4, 9, 0.0)
    assert not full(batches, 4, 9, SETTLED / 4 - 1)
    assert full(batches, 4, 9, SETTLED / 4)


def test_a_batch_is_not_full_while_nobody_waits_or_fewer_run() -> None:
    batches = full_at_its_limit()
    assert not full(batches, LIMIT, 0, SOON + 1)
    assert not full(batches, LIMIT - 1, 9, SOON + 2)
    assert full(batches, LIMIT, 1, SOON + 3)


def test_traffic_that_grows_fills_no_batch() -> None:
    batches = Batches()
    assert not any(full(batches, number, 9, number * SOON / 4) for number in range(1, 2 * LIMIT))


def test_a_limit_that_was_raised_counts_at_its_new_height() -> None:
    batches = full_at_its_limit()
    assert not full(batches, 2 * LIMIT, 9, 100.0)
    assert not full(batches, LIMIT, 9, 101.0)
    assert full(batches, 2 * LIMIT, 9, 100.0 + SOON)


def test_a_limit_that_was_lowered_counts_once_the_old_one_is_forgotten() -> None:
    batches = full_at_its_limit()
    late = SOON + FORGOTTEN + 1
    assert not full(batches, LIMIT // 2, 9, late - 2)
    assert not full(batches, LIMIT // 2, 9, late)
    assert full(batches, LIMIT // 2, 9, late + 2 * SOON)


def test_a_clock_that_was_set_back_begins_anew() -> None:
    batches = full_at_its_limit()
    assert not full(batches, LIMIT, 9, -1000.0)
    assert full(batches, LIMIT, 9, -1000.0 + SOON)


def test_ranks_are_apart_and_a_forgotten_one_begins_anew() -> None:
    batches = full_at_its_limit()
    other = ("pod-1", 1)
    assert not batches.is_full(other, Observed(LIMIT, 9, 0.0, 2 * SOON))
    batches.forget(RANK)
    assert not full(batches, LIMIT, 9, 2 * SOON)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.floats(0, 2 * SETTLED)), max_size=40
    )
)
def test_a_full_batch_has_others_waiting_and_never_had_more_running(
    steps: list[tuple[int, int, float]],
) -> None:
    batches, now, highest = Batches(), 0.0, 0
    for running, waiting, passed in steps:
        # No longer than this, so that nothing is forgotten.
        now += min(passed, FORGOTTEN / len(steps))
        highest = max(highest, running)
        if full(batches, running, waiting, now):
            assert waiting > 0
            assert running == highest
