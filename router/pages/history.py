"""The last hour in points of five seconds, for the page's charts. No I/O here."""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from warmpath.router.pages.live_view import Point

PAUSE = 5.0
"""Seconds from point to point."""
MOST = 720
"""Points that are kept: an hour."""


class History:
    """Keeps the `most` last points that `look` returned.

    Their times change with `wall_offset()`, which was added to each.
    """

    def __init__(
        self, look: Callable[[], Point], wall_offset: Callable[[], float], most: int = MOST
    ) -> None:
        self._look = look
        self._wall_offset = wall_offset
        self._points: deque[tuple[float, Point]] = deque(maxlen=most)
        """Points, each with the offset in its time."""

    def add(self) -> None:
        """Add the point of now."""
        self._points.append((self._wall_offset(), self._look()))

    def points(self) -> Sequence[Point]:
        """Return the points, oldest first."""
        now = self._wall_offset()
        return [
            point if added == now else msgspec.structs.replace(point, at=point.at - added + now)
            for added, point in self._points
        ]
