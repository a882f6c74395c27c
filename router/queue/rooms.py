"""Finds the ranks with room for another request, and spares most weighings of those that wait."""

from collections.abc import Collection, Mapping, Sequence

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.table import LoadTable
from warmpath.router.pick.eligible import Wanted
from warmpath.router.pick.weigh import Choice
from warmpath.router.queue.request import Look, Waiting

SAME_SECONDS = 0.002
"""Waits that differ by no more than these seconds count as equal."""
FRESH_SECONDS = 0.5
"""Age in seconds up to which a weighing may hold, since caches and counts of requests change too."""


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


class Looks:
    """When ranks last became better or worse, by release: whether the last weighing still holds.

    A request that was passed over would be passed over again as long as its rank has no room, no other
    rank has become better than by the passing of time, and its own has not become worse. Passing time
    alone shortens the waits of all busy ranks alike. `now` is the queue's clock, in seconds.
    """

    def __init__(self) -> None:
        self._release = 0
        """The number of the current release."""
        self._booked: Mapping[RankName, float] = {}
        """The booked seconds of the ranks at the last release."""
        self._at = float("-inf")
        self._worse: dict[RankName, int] = {}
        """The last release before which a rank became worse."""
        self._better: tuple[int, RankName | None] = (0, None)
        """The last release before which a rank became better, and the rank; None: several."""
        self._other_better = 0
        """The last release before which another rank became better."""

    def begin(self, rooms: Rooms, now: float) -> None:
        """Begin a release with the ranks that `rooms` has read."""
        self._release += 1
        elapsed = max(0.0, now - self._at)
        better = []
        for name, booked in rooms.seconds_booked.items():
            before = self._booked.get(name)
            if (
                before is None
                or booked < before - elapsed - SAME_SECONDS
                or (rooms.has(name) and before > rooms.hold)
            ):
                better.append(name)
            if before is not None and booked > before + SAME_SECONDS:
                self._worse[name] = self._release
        for name in better:
            if self._better[1] != name:
                self._other_better = self._better[0]
            self._better = self._release, name
        if len(better) > 1:
            self._other_better = self._release
        self._at = now

    def end(self, rooms: Rooms) -> None:
        """End a release; `rooms` has the booked seconds after it."""
        self._booked = dict(rooms.seconds_booked)
        if len(self._worse) > 2 * len(self._booked):
            self._worse = {name: at for name, at in self._worse.items() if name in self._booked}

    def held(self, waiting: Waiting, rooms: Rooms, now: float) -> Look | None:
        """Return a request's last weighing if the rank would be the same, still without room."""
        look = waiting.look
        if look is None or not 0 <= now - look.at < FRESH_SECONDS or rooms.has(look.name):
            return None
        better = self._other_better if self._better[1] == look.name else self._better[0]
        if better > look.release or self._worse.get(look.name, 0) > look.release:
            return None
        ahead, before = rooms.ahead, look.ahead
        if ahead.get(look.name, 0.0) > before.get(look.name, 0.0) + SAME_SECONDS:
            return None
        is_best = all(
            ahead.get(name, 0.0) >= seconds - SAME_SECONDS
            for name, seconds in before.items()
            if name != look.name
        )
        return look if is_best else None

    def keep(self, waiting: Waiting, choice: Choice, rooms: Rooms, now: float) -> None:
        """Remember a weighing by which a request is passed over, before it counts as ahead."""
        options = choice.options
        waiting.look = Look(options.best, options.own, dict(rooms.ahead), self._release, now)
