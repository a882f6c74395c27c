"""Predicts where waiting requests stand, without sending any."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from warmpath.router.pick.eligible import NoPodError, Wanted
from warmpath.router.pick.picker import Picker
from warmpath.router.queue.order import Order
from warmpath.router.queue.request import Standing, Waiting
from warmpath.router.queue.rooms import Rooms

MOST_COUNTED = 1000
"""Most requests that are counted before another one."""


class Preview:
    """The next releases of a queue as if each request only waited for its pod."""

    def __init__(self, picker: Picker, order: Order, most_looks: int) -> None:
        self._picker = picker
        self._order = order
        self._most_looks = most_looks

    def of(self, new: Waiting, rooms: Rooms, now: float) -> Standing:
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
        return Standing(behind, choice, rooms.until(choice.options[0].name))

    def first(self, rooms: Rooms, now: float) -> Sequence[tuple[Waiting, Standing]]:
        """Return the first requests, at most as many as a release looks at."""
        behind: Counter[Wanted] = Counter()
        found = []
        lanes = dict.fromkeys(self._order.lanes)
        for waiting in islice(self._order.passing(lanes), self._most_looks):
            try:
                choice = self._picker.weigh(waiting.ask, now, rooms.ahead)
            except NoPodError:
                continue
            best = choice.options[0]
            before = behind[waiting.wanted]
            found.append((waiting, Standing(before, choice, rooms.until(best.name))))
            behind[waiting.wanted] += 1
            rooms.passed(best.name, best.candidate.own, ())
        return found
