"""Finds stuck ranks: requests went there, and nothing is answered, neither a first token nor an end.

A rank owes an answer from the moment when a request goes out to it until any request there gets its
first token or ends well. A refusal ends that, too, but a client that goes away does not, however short
its patience. A rank that lets requests wait for several times the predicted wait is stuck, whatever its
health and its metrics say: an engine whose loop hangs, or that is paused, still tells both. An engine
whose cache events go on works, though: only the answers to these requests are not reported.
Picks avoid a stuck rank until it answers; now and then one more request tries whether it does.

How much later than predicted answers come is learnt from those that come: answers that do not stream
show only their end, and on a busy engine requests wait for a place in its batch. Where too many answers
stay unreported, only those ranks owe any whose own are known to be reported.
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Literal

import msgspec

from warmpath.indexer.index.slot import RankName
from warmpath.process.ranking import Ranking
from warmpath.router.load.rank_bookings import Booking, RankBook

log = logging.getLogger(__name__)

Ending = Literal["finished", "failed", "refused", "unsent", "expired"]
"""How a request ended. Without an answer: `refused` by its engine, or not sent to that rank at all.
`failed`: its client went away or waited too long; callers that only report call a refusal so, too.
`expired`: no report will come."""

TIMES = 4.0
"""An answer is overdue after TIMES x predicted seconds + LATE_TIMES x usual delay + LEAST_SECONDS."""
LATE_TIMES = 1.5
"""Multiple of answers' usual delay beyond their prediction, in the sum at `TIMES`."""
LEAST_SECONDS = 2.0
"""The constant part of the sum at `TIMES`."""
FIRST_SECONDS = 5.0
"""LEAST_SECONDS for a rank that has answered nothing yet: engines compile for first requests."""
FADING = 0.98
"""Each answer multiplies the usual delay by this, unless it is later itself."""
MOST_LATE_SECONDS = 300.0
"""Longest delay that counts as usual."""
ENOUGH = 8
"""Answers from which on it is known that answers are reported, and how late they come."""
LONG_SECONDS = 1.0
"""A refusal that comes later than this after TIMES times its predicted wait counts as none: whoever gave
it has waited in vain, too."""
REFUSED_SECONDS = 0.1
"""A failure within these seconds counts as a refusal if callers do not tell the two apart."""
RETRY_SECONDS = 10.0
"""Pause after which a request may try a stuck rank that owes no answer to another request."""
OPEN_SECONDS = 30.0
"""Pause after which a request may try a stuck rank that still owes answers to others."""
UNTRIED_SECONDS = 300.0
"""Pause after which a rank for which no request waits is not known to be stuck any more."""


class Owing(msgspec.Struct):
    """A rank's debt of an answer. Times are seconds of the bookings' clock."""

    since: float
    """When the first request went out that has no answer, or the rank's last answer after that; later by
    the time in which no request waited."""
    seconds: float
    """The predicted wait for the owed answer."""
    tried_at: float
    """When a request last went out to the rank or ended there without an answer, or it became stuck."""
    batch: int | None
    """The engine's last batch of events when the rank began to owe an answer, or was last looked at."""
    is_left: bool = False
    """Whether a client has gone without its answer: the debt then stays though no request waits."""
    waited: float | None = None
    """For how long requests had waited when the last of them left; None: one waits now."""


class StuckRanks:
    """The ranks that owe answers, of those in `books`.

    `batch` returns the number of a rank's last batch of events, None if there is none.
    """

    def __init__(
        self, books: Mapping[RankName, RankBook], batch: Callable[[str, int], int | None]
    ) -> None:
        self._books = books
        self._batch = batch
        self._owing: dict[RankName, Owing] = {}
        self._stuck: dict[RankName, Owing] = {}
        """The ranks of `_owing` that are stuck."""
        self._due: Ranking[RankName] = Ranking()
        """The ranks that are not known to be stuck, by the time when they will be."""
        self.due_at = math.inf
        """`expire` finds nothing before this time."""
        self._answers = 0
        self._late = 0.0
        """The usual delay of answers beyond their prediction, in seconds."""

    def sent(self, name: RankName, booking: Booking, now: float) -> None:
        """Record that a rank owes an answer to a booking that went out now."""
        owing = self._owing.get(name)
        if owing is None:
            self._owe(name, booking, now)
            return
        owing.tried_at = now
        if owing.waited is not None:
            owing.since, owing.waited = now - owing.waited, None
            owing.seconds = max(owing.seconds, booking.predicted)
            self._look(name, owing)

    def answered(self, name: RankName, booking: Booking, now: float, *, is_first: bool) -> None:
        """Record a first token or an end; `is_first` if it is the booking's first answer."""
        owing = self._owing.get(name)
        stuck = self._stuck.pop(name, None) if self._stuck else None
        if stuck is not None:
            log.info(
                "pod %s rank %d: it answers again, after %.0f s without an answer",
                *name, now - stuck.since,
            )  # fmt: skip
        elif is_first:
            self._answers += 1
            late = now - booking.since - booking.predicted
            self._late = min(max(late, FADING * self._late), MOST_LATE_SECONDS)
        head = self._books[name].owed
        if owing is None:
            return
        if head is None:
            self.forget(name)
        else:
            self._owe(name, head, now)

    def ended(self, name: RankName, booking: Booking, now: float, end: Ending) -> None:
        """Record that a booking left a rank, or is not waited for any more, without an answer."""
        owing = self._owing.get(name)
        if owing is None:
            return
        owing.tried_at = now
        if name in self._stuck or owing.waited is not None:
            return
        owing.is_left = owing.is_left or _has_left(booking, now, end)
        head = self._books[name].owed
        if head is None and owing.is_left:
            owing.waited = now - owing.since
            self._due.drop(name)
        elif head is None:
            self.forget(name)
        elif owing.is_left:
            # The client that left may have waited behind a shorter prompt than those that wait now.
            owing.seconds = max(owing.seconds, head.predicted)
            self._look(name, owing)
        elif head.since > owing.since:
            owing.since, owing.seconds = head.since, head.predicted
            self._look(name, owing)

    def forget(self, name: RankName) -> None:
        """Forget what a rank owes: it is gone, or its engine began anew."""
        self._owing.pop(name, None)
        self._stuck.pop(name, None)
        self._due.drop(name)

    def expire(self, now: float) -> None:
        """Find the ranks that are stuck by now; forget those that nobody tried for UNTRIED_SECONDS."""
        for name, owing in [*self._stuck.items()]:
            if self._books[name].owed is None and now - owing.tried_at >= UNTRIED_SECONDS:
                self.forget(name)
                log.info(
                    "pod %s rank %d: no request has tried for %.0f s whether it answers again",
                    *name, now - owing.tried_at,
                )  # fmt: skip
        while self._due and self._due.first[0][0] <= now:
            _, name = self._due.first
            owing = self._owing[name]
            due = owing.since + self._patience(name, owing)
            if due > now or self._answers < ENOUGH:
                self._look(name, owing, due if due > now else now + LEAST_SECONDS)
                continue
            before, owing.batch = owing.batch, self._batch(*name)
            if owing.batch != before:
                owing.since, owing.is_left = now, False
                self._look(name, owing)
                continue
            owing.tried_at = now
            self._stuck[name] = owing
            self._due.drop(name)
            log.warning(
                "pod %s rank %d: it has answered nothing for %.0f s, predicted were %.1f s, and %d "
                "requests wait for it: picks avoid it until it answers",
                *name, now - owing.since, owing.seconds, len(self._books[name].unanswered),
            )  # fmt: skip
        # How long a stuck rank stays one depends on more than the time.
        self.due_at = -math.inf if self._stuck else self._due.first[0][0] if self._due else math.inf

    def avoided(self, now: float) -> Collection[RankName]:
        """Return the stuck ranks that get no requests now; the others may be tried."""
        if not self._stuck:
            return ()
        return frozenset(
            name
            for name, owing in self._stuck.items()
            if now - owing.tried_at < (OPEN_SECONDS if self._books[name].owed else RETRY_SECONDS)
        )

    def __contains__(self, name: RankName) -> bool:
        return name in self._stuck

    def seconds(self, name: RankName, now: float) -> float:
        """Return for how long a stuck rank has answered nothing; 0 for any other rank."""
        owing = self._stuck.get(name)
        return 0.0 if owing is None else max(0.0, now - owing.since)

    def _owe(self, name: RankName, booking: Booking, now: float) -> None:
        seconds = max(0.0, booking.due_at - booking.since)
        owing = self._owing[name] = Owing(now, seconds, now, self._batch(*name))
        self._look(name, owing)

    def _look(self, name: RankName, owing: Owing, at: float | None = None) -> None:
        """Look at a rank at a time, by default when it has owed an answer for too long."""
        at = owing.since + self._patience(name, owing) if at is None else at
        self.due_at = min(self.due_at, at)
        self._due.put(name, (at, name))

    def _patience(self, name: RankName, owing: Owing) -> float:
        has_answered = self._books[name].answered_at > -math.inf
        least = LEAST_SECONDS if has_answered else FIRST_SECONDS
        return TIMES * owing.seconds + LATE_TIMES * self._late + least


def _has_left(booking: Booking, now: float, end: Ending) -> bool:
    """Return whether a request that ended now without an answer was not refused."""
    waited = now - booking.since
    if end == "refused":
        return waited > TIMES * booking.predicted + LONG_SECONDS
    return end == "failed" and (booking.is_watched or waited > REFUSED_SECONDS)
