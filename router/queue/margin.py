"""What ranks without room are given all the same: requests with little prefill, while few wait.

To hold them would spare nobody a wait. An example are further samples of a prompt whose first one is
being computed: they want that rank, and have nearly nothing left to compute. But if more requests wait
than there are ranks, these keep their order, too, since in an overload their answers delay the others.
"""

from warmpath.router.queue.rooms import Name, Rooms

LITTLE = 0.5
"""The part of `hold-seconds` up to which a prefill is little."""
TOGETHER = 5.0
"""What a rank without room takes of them, as a multiple of `hold-seconds`."""


class Margin:
    """The prefills in seconds that each rank took since it last had room (`hold_seconds`)."""

    def __init__(self, hold_seconds: float) -> None:
        self._little = LITTLE * hold_seconds
        self._most = TOGETHER * hold_seconds
        self._given: dict[Name, float] = {}

    def begin(self, rooms: Rooms) -> None:
        """Forget the ranks that have room."""
        for name in list(self._given):
            if rooms.has(name):
                del self._given[name]

    def takes(self, name: Name, prefill: float, rooms: Rooms, waiting: int) -> bool:
        """Return whether a rank without room takes a request while `waiting` requests wait."""
        return (
            prefill <= self._little
            and waiting <= len(rooms.all())
            and self._given.get(name, 0.0) + prefill <= self._most
        )

    def give(self, name: Name, prefill: float) -> None:
        """Count a request that such a rank took."""
        self._given[name] = self._given.get(name, 0.0) + prefill
