"""The history keeps the last points, oldest first."""

from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.pages.live_stream import History


@given(st.integers(0, 40), st.integers(1, 20))
def test_the_last_points_are_kept(added: int, most: int) -> None:
    times = iter(range(added))
    history = History(lambda: {"at": next(times)}, lambda: 0.0, most)
    for _ in range(added):
        history.add()
    assert [point["at"] for point in history.points()] == [*range(added)][-most:]


def test_points_move_with_the_machines_clock_when_that_is_set() -> None:
    offset = 5.0
    history = History(lambda: {"at": 1 + offset}, lambda: offset)
    history.add()
    offset = 1000.0
    history.add()
    assert [point["at"] for point in history.points()] == [1001.0, 1001.0]
