"""The history keeps the last points, oldest first."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.pages.live_stream import MOST, LiveStream


class Views:
    """Makes points at given times."""

    def __init__(self, times: Callable[[], float]) -> None:
        self._times = times
        self.offset = 0.0

    def point(self) -> dict[str, float]:
        return {"at": self._times()}

    def wall_offset(self) -> float:
        return self.offset


def stream(views: Any, most: int = MOST) -> LiveStream:
    return LiveStream(views, views, most)


@given(st.integers(0, 40), st.integers(1, 20))
def test_the_last_points_are_kept(added: int, most: int) -> None:
    live = stream(Views(iter(range(added)).__next__), most)
    for _ in range(added):
        live.add_point()
    assert [point["at"] for point in live.points()] == [*range(added)][-most:]


def test_points_move_with_the_machines_clock_when_that_is_set() -> None:
    views = Views(lambda: 1 + views.offset)
    live = stream(views)
    views.offset = 5.0
    live.add_point()
    views.offset = 1000.0
    live.add_point()
    assert [point["at"] for point in live.points()] == [1001.0, 1001.0]
