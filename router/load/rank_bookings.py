"""The bookings on one rank, in the order in which their requests went out, and their sums."""

import math
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import msgspec

from warmpath.indexer.index.slot import RankName


class Step(msgspec.Struct, eq=False):
    """The prefills of one step of an engine, whose first tokens come together; times are in seconds."""

    is_measured: bool = True
    """Whether the measured and the predicted time can be compared."""
    prefills: int = 0
    seconds: float = 0.0
    """Measured time, from the first prefill's earliest possible start to the last first token."""
    predicted: float = 0.0
    """Predicted time, in which the fixed part of a prefill counts once."""
    running: int = 0
    """Number of the step's requests that have not ended."""
    is_latest: bool = True
    """Whether it is the rank's latest one, and may get more prefills."""

    def add(self, seconds: float, predicted: float) -> None:
        """Add a prefill, whose request is running."""
        self.prefills += 1
        self.running += 1
        self.seconds += seconds
        self.predicted += predicted

    @property
    def is_over(self) -> bool:
        """Whether it is final: there is a later step, and all of its requests have ended."""
        return not self.is_latest and not self.running


NANOSECONDS = 1_000_000_000
MOST_PREFILL = 86400.0
"""Longest accepted prefill, in seconds: a day, which no prefill takes."""
KNOWN_REPORTS = 50
"""Answers after which it is known whether a rank's answers are reported."""


@dataclass(slots=True)
class Work:
    """The predicted work of one request on a rank; nothing changes it.

    Raises ValueError if its figures are impossible.
    """

    model: str
    pod: str
    rank: int
    prompt_tokens: int
    cached: int
    """Leading tokens that are predicted to be cached."""
    prefill: float
    """Predicted seconds for computing the tokens that are not cached."""
    factor: float = 1.0
    """The calibration factor that `prefill` includes (`router.pick.calibration`)."""
    shared: float = 0.0
    """The seconds of `prefill` that are predicted to be shared with requests that wait, too."""
    name: RankName = field(init=False, repr=False, compare=False)
    uncached: int = field(init=False, repr=False, compare=False)
    """Prompt tokens to compute."""
    nanoseconds: int = field(init=False, repr=False, compare=False)
    """The prefill; an integer, since sums of integers accumulate no rounding errors."""
    own_nanoseconds: int = field(init=False, repr=False, compare=False)
    """The part of the prefill that this request shares with no other one."""

    def __post_init__(self) -> None:
        if not 0 <= self.cached <= self.prompt_tokens:
            raise ValueError(f"cached is {self.cached}, not 0 to {self.prompt_tokens} tokens")
        if not 0 <= self.prefill <= MOST_PREFILL:
            raise ValueError(f"prefill is {self.prefill} s, not 0 to {MOST_PREFILL:g} s")
        if not 0 <= self.shared <= self.prefill:
            raise ValueError(f"shared is {self.shared} s, not 0 to {self.prefill} s")
        # Computed once, since all are read at several changes of a booking.
        self.name = RankName(self.pod, self.rank)
        self.uncached = self.prompt_tokens - self.cached
        self.nanoseconds = round(self.prefill * NANOSECONDS)
        self.own_nanoseconds = round((self.prefill - self.shared) * NANOSECONDS)


class Booking(msgspec.Struct, eq=False):
    """The booking of one picked request. Times are seconds of the bookings' clock."""

    id: str
    number: int
    """The number of its pick."""
    work: Work
    expires: float
    since: float
    """Time when it went to its rank, as reported; before a report, the time of the booking."""
    late_at: float
    """Time from which its first token is presumed without a report."""
    due_at: float = -math.inf
    """Predicted time of the first token."""
    lost_at: float = -math.inf
    """Time from which the report of the first token counts as lost."""
    overtaken_at: float | None = None
    """When a later request of its rank first had its first token before it; None: none had."""
    dispatched: bool = False
    """Whether a gateway has reported that it went out."""
    is_watched: bool = False
    """Whether its end is always reported, as the gateway shows the whole exchange."""
    first_token_at: float | None = None
    """Reported time of the first token; None: not reported."""
    is_missed: bool = False
    """Whether its first token has counted as unreported (`router.load.overdue`)."""
    prefill_from: float | None = None
    """Earliest possible start of its prefill, set once its first token is reported or presumed; None:
    not known."""
    timed: bool = False
    """Whether calibration has seen its first token (`router.pick.calibration`)."""
    step: Step | None = None
    """The engine's step that computed its first token, until its request ends."""
    actual_cached: int | None = None
    """Tokens that the engine found cached; None: not reported yet."""

    @property
    def predicted(self) -> float:
        """Seconds from `since` until the predicted time of the first token."""
        return max(0.0, self.due_at - self.since)


UNREPORTED_SHARE = 0.05
"""Share of unreported first tokens above which the router stops waiting for reports."""
LEAST_WEIGHT = 0.02
"""Least weight of the latest first token in the share, a moving average."""


@dataclass(slots=True)
class Unreported:
    """The share of requests whose answer nobody reported, a moving average.

    Each request counts once: when its first token is reported, when that report counts as lost, or when
    the request ends without one. One that counted as lost counts again if its report comes after all.
    """

    counted: int = 0
    share: float = 0.0

    def count(self, *, reported: bool) -> None:
        """Count a first token that was reported, or that will not be."""
        self.counted += 1
        self.share += max(LEAST_WEIGHT, 1 / self.counted) * ((not reported) - self.share)


class Head(NamedTuple):
    """The first waiting request, which the rank is presumed to compute."""

    since: float
    """Time when the request went to its rank."""
    nanoseconds: int
    """The request's predicted prefill."""


_head = partial(tuple.__new__, Head)
"""Makes a `Head` of a pair in a third of the time that calling the class takes."""

NO_RANK = RankName("", 0)
"""The name in a book that is no rank's."""
HEAD_FLOOR = 0.15
"""Least share of its predicted prefill that a rank's first waiting request weighs: predictions err."""


def wait(nanoseconds: int, head: Head | None, free_since: float, now: float) -> float:
    """Return the seconds until a new prefill would start.

    `nanoseconds` is the prefill of all waiting requests (`RankBook.prefill`), `head` the first of them.
    The time for which the rank has computed the head is deducted, but at least the share HEAD_FLOOR of
    the head's prefill remains, since predictions are not exact.
    """
    if head is None:
        return nanoseconds / NANOSECONDS
    whole = head.nanoseconds
    had = max(0.0, now - max(free_since, head.since))
    left = max(whole - had * NANOSECONDS, HEAD_FLOOR * whole)
    return (nanoseconds - whole + left) / NANOSECONDS


@dataclass(slots=True, eq=False)
class RankBook:
    """The bookings of one rank; every change of them adds its `name` to the set `news`."""

    name: RankName = NO_RANK
    news: set[RankName] = field(default_factory=set)
    in_flight: OrderedDict[str, Booking] = field(default_factory=OrderedDict)
    """Bookings by id, in the order of `since`."""
    waiting: OrderedDict[str, Booking] = field(default_factory=OrderedDict)
    """The bookings without a first token, in the order of `since`."""
    unanswered: OrderedDict[str, Booking] = field(default_factory=OrderedDict)
    """The bookings to which the rank owes an answer (`router.load.stuck`), in the order of `since`."""
    answered_at: float = -math.inf
    """Time at which a first token or an end was last reported."""
    unreported: Unreported = field(default_factory=Unreported)
    """The share of requests that nobody reported anything about while the rank answered others."""
    free_since: float = -math.inf
    """Presumed end of the rank's last prefill."""
    reported_at: float = -math.inf
    """Time at which a first token was last reported."""
    last_pick: int = 0
    version: int = 0
    """Grows with every change of the bookings, but not as time passes."""
    uncached_tokens: int = 0
    prompt_tokens: int = 0
    context_tokens: int = 0
    _watched: int = 0
    """Number of the bookings that are watched."""
    _own_nanoseconds: int = 0
    """The own parts of the prefills of all waiting bookings."""

    def place(self, booking: Booking) -> None:
        """Add a booking as the last; it waits unless it has its first token."""
        work = booking.work
        self.in_flight[booking.id] = booking
        self.context_tokens += work.prompt_tokens
        self._watched += booking.is_watched
        if booking.first_token_at is None:
            self.waiting[booking.id] = booking
            self._own_nanoseconds += work.own_nanoseconds
            self.uncached_tokens += work.uncached
            self.prompt_tokens += work.prompt_tokens
        self.changed()

    def take(self, booking: Booking) -> None:
        if booking.id in self.waiting:
            self.take_waiting(booking)
        del self.in_flight[booking.id]
        self.context_tokens -= booking.work.prompt_tokens
        self._watched -= booking.is_watched
        self.changed()

    def take_waiting(self, booking: Booking) -> bool:
        """Remove a booking from the waiting ones; return False if it did not wait.

        The caller calls `changed`.
        """
        if self.waiting.pop(booking.id, None) is None:
            return False
        work = booking.work
        self._own_nanoseconds -= work.own_nanoseconds
        self.uncached_tokens -= work.uncached
        self.prompt_tokens -= work.prompt_tokens
        return True

    def changed(self) -> None:
        self.version += 1
        self.news.add(self.name)

    @property
    def first(self) -> Booking | None:
        """The first waiting booking."""
        return next(iter(self.waiting.values()), None)

    @property
    def is_watched(self) -> bool:
        """Whether all bookings are watched."""
        return self._watched == len(self.in_flight)

    def may_have_ended(self, booking: Booking) -> bool:
        """Return whether the end of a booking may have stayed unreported.

        Not if its gateway shows the whole exchange, nor if it went out after the rank's last answer:
        then only the engine's metrics say so, and those of an engine that hangs stand still.
        """
        if booking.is_watched:
            return False
        return booking.id not in self.unanswered or booking.since < self.answered_at

    @property
    def owed(self) -> Booking | None:
        """The first booking that waits for an answer and cannot have ended unreported."""
        latest = next(reversed(self.unanswered.values()), None)
        if latest is None or (not self._watched and self.may_have_ended(latest)):
            return None
        for one in self.unanswered.values():
            if one.is_watched or not self.may_have_ended(one):
                return one
        return None

    @property
    def is_reported(self) -> bool:
        """Whether it is known that the rank's answers are reported."""
        of = self.unreported
        return of.counted >= KNOWN_REPORTS and of.share <= UNREPORTED_SHARE

    @property
    def certain(self) -> int:
        """Number of bookings for which `may_have_ended` is false."""
        latest = takewhile(
            lambda booking: booking.since >= self.answered_at, reversed(self.unanswered.values())
        )
        return self._watched + sum(not booking.is_watched for booking in latest)

    def head(self, lost: Collection[str] = ()) -> Head | None:
        """Return the first waiting request that is not `lost`; None if there is none."""
        booking = self._first(lost)
        return None if booking is None else _head((booking.since, booking.work.nanoseconds))

    def _first(self, lost: Collection[str]) -> Booking | None:
        if not lost:
            return next(iter(self.waiting.values()), None)
        return next((one for name, one in self.waiting.items() if name not in lost), None)

    def prefill(self, lost: Collection[str] = ()) -> int:
        """Return the nanoseconds of prefill of the waiting requests that are not `lost`.

        The first one counts whole, and each other one with its own part (`Work.shared`).
        """
        first = self._first(lost)
        if first is None:
            return 0
        skipped = sum([self.waiting[name].work.own_nanoseconds for name in lost]) if lost else 0
        shared = first.work.nanoseconds - first.work.own_nanoseconds
        return self._own_nanoseconds - skipped + shared

    def seconds_ahead(self, now: float) -> float:
        """Return the seconds until a new prefill would start, by these bookings alone."""
        first = next(iter(self.waiting.values()), None)
        if first is None:
            return 0.0
        work = first.work
        nanoseconds = self._own_nanoseconds + work.nanoseconds - work.own_nanoseconds
        return wait(nanoseconds, _head((first.since, work.nanoseconds)), self.free_since, now)
