"""The history keeps the last points, oldest first."""

from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.pages.live_stream import History
from warmpath.router.pages.live_view import Point


@given(st.integers(0, 40), st.integers(1, 20))
def test_the_last_points_are_kept(added: int, most: int) -> None:
    times = iter(range(added))
    history = History(lambda: Point(next(times), 0, 0, 0, 0, 0, 0.0, 0), lambda: 0.0, most)
    for _ in range(added):
        history.add()
    assert [point.at for point in history.points()] == [*range(added)][-most:]


def test_points_move_with_the_machines_clock_when_that_is_set() -> None:
    offset = 5.0
    history = History(lambda: Point(1 + offset, 0, 0, 0, 0, 0, 0.0, 0), lambda: offset)
    history.add()
    offset = 1000.0
    history.add()
    assert [point.at for point in history.points()] == [1001.0, 1001.0]
