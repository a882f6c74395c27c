"""The history keeps the last points, oldest first."""

from hypothesis import given
from hypothesis import strategies as st

from router.live_page.history import History
from router.live_page.view import Point


@given(st.integers(0, 40), st.integers(1, 20))
def test_the_last_points_are_kept(added: int, most: int) -> None:
    times = iter(range(added))
    history = History(lambda: Point(next(times), 0, 0, 0, 0, 0, 0.0, 0), most)
    for _ in range(added):
        history.add()
    assert [point.at for point in history.points()] == [*range(added)][-most:]
