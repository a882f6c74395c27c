"""Predicts where waiting requests stand, without sending any."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice

from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.picker import Picker
from warmpath.router.pick.weigh import Choice
from warmpath.router.queue.order import Order
from warmpath.router.queue.request import Standing, Waiting, Wanted
from warmpath.router.queue.rooms import Margin, Rooms

MOST_COUNTED = 1000
"""Most requests that are counted before another one."""


class Preview:
    """The next releases of a queue as if each request only waited for its pod.

    `open_lanes` are those that have a rank with room.
    """

    def __init__(self, picker: Picker, order: Order, margin: Margin, most_looks: int) -> None:
        self._picker = picker
        self._order = order
        self._margin = margin
        self._most_looks = most_looks

    def of(
        self, new: Waiting, open_lanes: Collection[Wanted], rooms: Rooms, now: float
    ) -> Standing:
        """Return the standing of a request that is in the order. Raises as `Picker.weigh`."""
        behind = 0
        for waiting in self._order.passing({new.wanted: ()}):
            if waiting is new or behind == MOST_COUNTED:
                break
            behind += 1
            if behind <= self._most_looks:
                best = self._picker.weigh(waiting.ask, now, rooms.ahead).options[0]
                rooms.passed(best.name, best.candidate.own, ())
        choice = self._picker.weigh(new.ask, now, rooms.ahead)
        return self._standing(new, behind, choice, open_lanes, rooms)

    def first(
        self, open_lanes: Collection[Wanted], rooms: Rooms, now: float
    ) -> Sequence[tuple[Waiting, Standing]]:
        """Return the first requests, at most as many as a release looks at."""
        behind: Counter[Wanted] = Counter()
        found = []
        lanes = dict.fromkeys(self._order.lanes)
        for waiting in islice(self._order.passing(lanes), self._most_looks):
            try:
                choice = self._picker.weigh(waiting.ask, now, rooms.ahead)
            except NoPodError:
                continue
            before = behind[waiting.wanted]
            found.append((waiting, self._standing(waiting, before, choice, open_lanes, rooms)))
            behind[waiting.wanted] += 1
            best = choice.options[0]
            rooms.passed(best.name, best.candidate.own, ())
        return found

    def _standing(
        self,
        waiting: Waiting,
        behind: int,
        choice: Choice,
        open_lanes: Collection[Wanted],
        rooms: Rooms,
    ) -> Standing:
        best = choice.options[0]
        if waiting.wanted in open_lanes and self._margin.takes(
            best.name, best.candidate.own, rooms, len(self._order)
        ):
            return Standing(0, choice, 0.0)
        return Standing(behind, choice, rooms.until(best.name))
