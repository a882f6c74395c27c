"""The last hour in points of five seconds, for the page's charts. No I/O here."""

from collections import deque
from collections.abc import Callable, Sequence

from router.live_page.view import Point

PAUSE = 5.0
"""Seconds from point to point."""
MOST = 720
"""Points that are kept: an hour."""


class History:
    """Keeps the `most` last points that `look` returned."""

    def __init__(self, look: Callable[[], Point], most: int = MOST) -> None:
        self._look = look
        self._points: deque[Point] = deque(maxlen=most)

    def add(self) -> None:
        """Add the point of now."""
        self._points.append(self._look())

    def points(self) -> Sequence[Point]:
        """Return the points, oldest first."""
        return list(self._points)
