"""Finds the ranks with room for another request, and the lanes with such a rank."""

from collections.abc import Collection, Sequence

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.table import LoadTable
from warmpath.router.pick.eligible import Wanted


class Rooms:
    """The booked seconds of prefill that are left on ranks during one release (`LoadTable.drained`).

    A rank has room while the routers have booked at most `hold` seconds there. Requests that no router
    has booked do not count: that traffic does not queue here, and requests that waited for its end could
    wait for ever.
    """

    def __init__(self, loads: LoadTable, hold: float, now: float) -> None:
        self._loads = loads
        self.hold = hold
        self._now = now
        self.seconds_booked: dict[RankName, float] = {}
        """The booked seconds of the ranks that were read."""
        self.ahead: dict[RankName, float] = {}
        """Seconds of prefill, by rank, of the requests that were passed over."""
        self._with_room: dict[Wanted, set[RankName]] = {}

    def add(self, wanted: Wanted, names: Sequence[RankName]) -> bool:
        """Add a lane with its ranks; return whether one of them has room."""
        missing = [name for name in names if name not in self.seconds_booked]
        if missing:
            self._read(missing)
        found = {name for name in names if self.has(name)}
        self._with_room[wanted] = found
        return bool(found)

    def has(self, name: RankName) -> bool:
        """Return whether a rank has room behind the requests that were passed over."""
        return self.seconds(name) <= self.hold

    def seconds(self, name: RankName) -> float:
        """Return the seconds of prefill that are booked on a rank, or wait for it."""
        if name not in self.seconds_booked:
            self._read([name])
        return self.seconds_booked[name] + self.ahead.get(name, 0.0)

    def until(self, name: RankName) -> float:
        """Return the predicted seconds until a rank has room."""
        return max(0.0, self.seconds(name) - self.hold)

    def passed(self, name: RankName, prefill: float, lanes: Collection[Wanted]) -> set[Wanted]:
        """Count a passed-over request as waiting for a rank; return the `lanes` without room now."""
        self.ahead[name] = self.ahead.get(name, 0.0) + prefill
        return self._without_room(name, lanes)

    def booked(self, name: RankName, lanes: Collection[Wanted]) -> set[Wanted]:
        """Read a rank's load anew, after a booking; return the `lanes` without room now."""
        self._read([name])
        return self._without_room(name, lanes)

    def _without_room(self, name: RankName, lanes: Collection[Wanted]) -> set[Wanted]:
        if self.has(name):
            return set()
        emptied = set()
        for wanted in lanes:
            names = self._with_room[wanted]
            names.discard(name)
            if not names:
                emptied.add(wanted)
        return emptied

    def soonest(self) -> float:
        """Return the least predicted seconds until a rank without room has some; infinity: never."""
        waits = (
            booked - self.hold for booked in self.seconds_booked.values() if booked > self.hold
        )
        return min(waits, default=float("inf"))

    def _read(self, names: Sequence[RankName]) -> None:
        self.seconds_booked.update(zip(names, self._loads.drained(names, self._now), strict=True))
