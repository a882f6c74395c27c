"""The queue: a request waits here until the rank with the lowest cost has room.

    enter ─► order ─► release: weigh in order; requests passed over count as waiting ─► reserve
               └─► leave: the caller has gone, or gives way (`router.queue.crowd`)

A request that is sent at once waits in one pod's queue and can no longer go elsewhere. Here the rank is
chosen only when one has room, and short prefills need not wait behind a long one.

One file, without sockets, tasks or a clock of its own: the router and `warmpath simulate` run it. They
call `release` after each event that may give room (an arrival, a report, an engine's load, a change of
pods) and at the time that the last `release` returned.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import islice

from msgspec.structs import replace

from warmpath.router.config.schema import QueueTable
from warmpath.router.pick.eligible import Field, NoPodError, Wanted
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.picking import Picking, precedence_of
from warmpath.router.pick.weigh import Ask, Choice
from warmpath.router.queue.crowd import Crowd
from warmpath.router.queue.lag import FirstTokenLag
from warmpath.router.queue.order import Order
from warmpath.router.queue.request import QueueFullError, Release, Standing, Waiting
from warmpath.router.queue.rooms import Looks, Rooms

MOST_AT_ONCE = 8
"""Most requests that one release sends, so that other tasks run in between: about three milliseconds."""
MOST_LOOKS = 32
"""Maximum waiting requests that are weighed at one event, about 0.1 ms each."""
MOST_COUNTED = 1000
"""Most requests that are counted as before another one (`Standing.behind`)."""
SHORTEST_PAUSE = 0.01
"""Least seconds between two releases without news."""
IDLE_PAUSE = 0.05
"""Pause in seconds after a release that could not look at all requests, and sent none."""
LONGEST_PAUSE = 0.5
"""Most seconds between two releases while requests wait, since bookings and observations expire."""
LAG_TIMES = 2.0
"""Seconds of booked prefill that a rank may have in addition per second of lag (`FirstTokenLag`)."""
MOST_LAG = 0.25
"""Lag in seconds beyond which no request is held."""
RETRY_SECONDS = 1.0
"""Time after which a request that found no place may try again."""
SPARE = 64
"""Most entries, of outdated times, that a heap may have beyond the number of waiting requests."""


Refusals = dict[Waiting, NoPodError | QueueFullError]
"""The requests that get no pick, with the reasons."""


class Hindrance(StrEnum):
    """Why the queue holds no request (docs/guides/queue.md); the value is a metric's label."""

    ENDING = "ending"
    OTHER_ROUTERS = "other-routers"
    FEW_FIRST_TOKENS = "few-first-tokens"
    UNREPORTED_FIRST_TOKENS = "unreported-first-tokens"
    LATE_FIRST_TOKENS = "late-first-tokens"


class Queue:
    """The waiting requests of one router. `now` is the ingest's clock, in seconds, in every call.

    `eligible` returns the ranks that are wanted, as they are now; it raises NoPodError.
    """

    def __init__(
        self,
        picking: Picking,
        settings: QueueTable,
        *,
        eligible: Callable[[Wanted], Field],
        most_looks: int = MOST_LOOKS,
    ) -> None:
        self._picker, self._loads = picking.picker, picking.loads
        self._bookings = picking.bookings
        self._most_looks = most_looks
        self._eligible = eligible
        self.lag = FirstTokenLag()
        self._picker.add_witness(self.lag)
        self._take(settings)
        self._looks = Looks()
        self._times: list[tuple[float, int, Waiting]] = []
        """A heap of the times at which requests go to the best pod; some entries may be outdated."""
        self._refused: Refusals = {}
        """Requests that lost their place to others; the next release returns them."""
        self._fresh: tuple[Waiting, Choice, float] | None = None
        """The request that has just entered, with its choice and the time of it."""
        self._number = 0
        self._drains = False
        self.refused = 0
        """Requests that found no place, or lost theirs to others, since the start."""

    def _take(self, settings: QueueTable) -> None:
        self._settings = settings
        self._precedence = precedence_of(settings)
        self._order = Order(settings.shares)
        self.crowd: Crowd[Waiting] = Crowd(settings)

    def __len__(self) -> int:
        return len(self.crowd)

    @property
    def hold_seconds(self) -> float:
        """Most booked prefill of a rank with room, in seconds; infinity: no request is held."""
        if self.hindrance is not None:
            return float("inf")
        return self._settings.hold_seconds + LAG_TIMES * self.lag.seconds

    @property
    def hindrance(self) -> Hindrance | None:
        """Why no request is held; None: requests are held."""
        if self._drains:
            return Hindrance.ENDING
        if self._loads.has_others:
            return Hindrance.OTHER_ROUTERS
        if not self.lag.is_known:
            return Hindrance.FEW_FIRST_TOKENS
        if not self._bookings.hears_first_tokens:
            return Hindrance.UNREPORTED_FIRST_TOKENS
        if self.lag.seconds > MOST_LAG:
            return Hindrance.LATE_FIRST_TOKENS
        return None

    def enter(self, waiting: Waiting, now: float) -> None:
        """Let a request wait. A `release` must follow at once; it may send the request.

        Others may be refused to make room. Raises QueueFullError, and as `Picker.weigh`.
        """
        choice = self._picker.weigh(waiting.ask, now)
        self._number += 1
        self._prepare(waiting, choice)
        self._make_room(waiting)
        self._order.add(waiting)
        heappush(self._times, (waiting.until, waiting.number, waiting))
        self._fresh = waiting, choice, now

    def _prepare(self, waiting: Waiting, choice: Choice) -> None:
        waiting.number = self._number
        waiting.until = min(waiting.until, waiting.arrived + self._settings.wait_seconds)
        waiting.key = self._weighed(waiting, choice)

    def _weighed(self, waiting: Waiting, choice: Choice) -> float:
        """Note a request's cheapest prefill; return its key by it."""
        waiting.seconds, cached = choice.options.cheapest()
        waiting.uncached = waiting.ask.tokens - cached
        return self._precedence.place(waiting.arrived, waiting.seconds)

    def use(self, settings: QueueTable, place: Callable[[int], int]) -> None:
        """Take other settings; `place` returns the class that requests of a class are of from now on.

        Tenants' shares begin anew. If fewer may wait than do, nobody is refused for that.
        """
        before = self.crowd
        self._take(settings)
        for waiting in sorted(before, key=lambda one: one.number):
            waiting.priority = place(waiting.priority)
            self._order.add(waiting)
            self.crowd.add(waiting)

    def leave(self, waiting: Waiting) -> None:
        """Remove a request whose caller has gone, if it waits still."""
        self._fresh = None
        self._remove(waiting, is_served=False)

    def drain(self) -> None:
        """Hold no request from now on: the next releases send each to the pod that is best."""
        self._drains = True

    def release(self, now: float) -> Release:
        """Send the requests whose turn it is and whose rank has room."""
        fresh, self._fresh = self._fresh, None
        refused, self._refused = self._refused, {}
        sent: dict[Waiting, Pick] = {}
        are_more = self._send_due(now, sent, refused)
        if sent or (fresh is not None and fresh[2] != now):
            fresh = None
        rooms, fields = self._lanes(now, refused)
        self._order.end_turns()
        self._looks.begin(rooms, now)
        moved: list[tuple[Waiting, Choice]] = []
        looks = 0
        for waiting in self._order.in_order(fields):
            if looks == self._most_looks or len(sent) >= MOST_AT_ONCE:
                are_more = True
                break
            looks += 1
            look = self._looks.held(waiting, rooms, now)
            if look:
                filled = rooms.passed(look.name, look.prefill, fields)
            else:
                try:
                    choice = self._choice(waiting, fields[waiting.wanted], rooms, fresh, now)
                except NoPodError as error:
                    refused[waiting] = error
                    continue
                name = choice.options.best
                if rooms.has(name):
                    placed = sent[waiting] = self._sent(waiting, now, choice)
                    waiting.uncached = waiting.ask.tokens - placed.expected.cached
                    filled, fresh = rooms.booked(name, fields), None
                else:
                    moved.append((waiting, choice))
                    self._looks.keep(waiting, choice, rooms, now)
                    filled = rooms.passed(name, choice.options.own, fields)
            for wanted in filled:
                del fields[wanted]
            if not fields:
                break
        self._looks.end(rooms)
        for waiting in sent:
            self._remove(waiting, is_served=True)
        for waiting in refused:
            self._remove(waiting, is_served=False)
        for waiting, choice in moved:
            self._order.move(waiting, self._weighed(waiting, choice))
        return Release(sent, refused, self._next_at(now, rooms, sends=bool(sent), more=are_more))

    def standing(self, new: Waiting, now: float) -> Standing:
        """Return the place that a request would have; nothing changes. Raises as `Picker.weigh`."""
        self._fresh = None
        self._prepare(new, self._picker.weigh(new.ask, now))
        new.number += 1
        self._order.add(new)
        try:
            rooms, _ = self._lanes(now, {})
            behind = 0
            for waiting in self._order.in_order({new.wanted}):
                if waiting is new or behind == MOST_COUNTED:
                    break
                if behind < self._most_looks:
                    self._foreseen(waiting, rooms, now)
                behind += 1
            return self._foreseen(new, rooms, now, behind)
        finally:
            self._order.remove(new, is_served=False)

    def standings(self, now: float) -> Sequence[tuple[Waiting, Standing]]:
        """Return the requests that go first, at most as many as a release looks at; nothing changes."""
        rooms, _ = self._lanes(now, {})
        behind: Counter[Wanted] = Counter()
        found = []
        for waiting in islice(self._order.in_order({*self._order.lanes}), self._most_looks):
            with suppress(NoPodError):
                standing = self._foreseen(waiting, rooms, now, behind[waiting.wanted])
                found.append((waiting, standing))
                behind[waiting.wanted] += 1
        return found

    def _foreseen(self, waiting: Waiting, rooms: Rooms, now: float, behind: int = 0) -> Standing:
        """Return a request's standing if it only waits for its pod, and count it as passed over."""
        choice = self._picker.weigh(waiting.ask, now, rooms.ahead)
        best = choice.options.best
        standing = Standing(behind, choice, rooms.until(best))
        rooms.passed(best, choice.options.own, ())
        return standing

    def _choice(
        self,
        waiting: Waiting,
        field: Field,
        rooms: Rooms,
        fresh: tuple[Waiting, Choice, float] | None,
        now: float,
    ) -> Choice:
        """Weigh a request among the ranks that may take it now. Raises NoPodError."""
        waiting.ask = _among(waiting.ask, field)
        if fresh is not None and fresh[0] is waiting and not rooms.ahead:
            return fresh[1]
        return self._picker.weigh(waiting.ask, now, rooms.ahead)

    def _make_room(self, newcomer: Waiting) -> None:
        """Refuse those that give way to a request, or itself. Raises QueueFullError."""
        gone = self.crowd.squeeze_in(newcomer)
        self.refused += len(gone)
        if newcomer in gone:
            raise self._full()
        for one in gone:
            self._refused[one] = self._full()
            self._forget(one, is_served=False)

    def _full(self) -> QueueFullError:
        by_number = len(self) >= self._settings.max_requests
        problem = f"{len(self)} requests ({self.crowd.bytes} bytes) wait for a pod with room"
        limit = "max-requests" if by_number else "max-bytes"
        return QueueFullError(problem, f"queue.{limit}", RETRY_SECONDS)

    def _remove(self, waiting: Waiting, *, is_served: bool) -> None:
        if waiting.is_waiting:
            self.crowd.remove(waiting)
            self._forget(waiting, is_served=is_served)

    def _forget(self, waiting: Waiting, *, is_served: bool) -> None:
        waiting.is_waiting = False
        self._order.remove(waiting, is_served=is_served)
        if len(self._times) > 2 * len(self) + SPARE:
            self._times = [entry for entry in self._times if entry[2].is_waiting]
            heapify(self._times)

    def _send_due(self, now: float, sent: dict[Waiting, Pick], refused: Refusals) -> bool:
        """Send requests that may wait no longer; return whether others of them are left."""
        while (due := self._first_due()) is not None and due.until <= now:
            if len(sent) >= MOST_AT_ONCE:
                return True
            heappop(self._times)
            try:
                due.ask = _among(due.ask, self._eligible(due.wanted))
                sent[due] = self._sent(due, now)
            except NoPodError as error:
                refused[due] = error
            self._remove(due, is_served=True)
        return False

    def _sent(self, waiting: Waiting, now: float, choice: Choice | None = None) -> Pick:
        placed = self._picker.reserve(waiting.ask, now, choice)
        placed.waited = max(0.0, now - waiting.arrived)
        return placed

    def _first_due(self) -> Waiting | None:
        """Return the request whose wait must end first; None if no request waits."""
        while self._times and not self._times[0][2].is_waiting:
            heappop(self._times)
        return self._times[0][2] if self._times else None

    def _lanes(self, now: float, refused: Refusals) -> tuple[Rooms, dict[Wanted, Field]]:
        """Return the ranks' rooms, and the lanes that have a rank with room, with their ranks.

        A lane without a pod has its requests added to `refused`.
        """
        rooms = Rooms(self._loads, self.hold_seconds, now)
        found = {}
        for wanted in self._order.considered():
            try:
                field = self._eligible(wanted)
            except NoPodError as error:
                refused |= dict.fromkeys(self._order.of_lane(wanted), error)
                continue
            prefilling = field.part("prefill", ()) if wanted.disaggregated else field
            if rooms.add(wanted, prefilling.names):
                found[wanted] = field
        return rooms, found

    def _next_at(self, now: float, rooms: Rooms, *, sends: bool, more: bool) -> float:
        due = self._first_due()
        if due is None:
            return float("inf")
        if more:
            return min(due.until, now if sends else now + IDLE_PAUSE)
        pause = min(max(SHORTEST_PAUSE, rooms.soonest()), LONGEST_PAUSE)
        return min(due.until, now + pause)


def _among(ask: Ask, field: Field) -> Ask:
    return ask if ask.field is field else replace(ask, field=field)
