"""Bookings: the work of picked requests that their pods have not finished yet.

A booking counts from the moment a pod is picked, so that a burst does not pile up on one pod before
any engine has reported load. Its predicted seconds of prefill count until its first token, its prompt
tokens, as context of decoding, until its end. A booking without reports does not count for ever: an
overdue first token (`router.load.overdue`) is presumed to have come, and later the booking expires.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.overdue import Overdue
from warmpath.router.load.rank_bookings import Booking, RankBook, Work
from warmpath.router.load.stuck import Ending, StuckRanks


class Bookings:
    """All bookings of one router. Times are seconds of the caller's clock, which never goes back.

    A jump forwards counts as passed time, so due bookings expire.
    """

    def __init__(
        self,
        *,
        expire_after: float,
        most: int,
        batch: Callable[[str, int], int | None] = lambda *_: None,
    ) -> None:
        """Keep at most `most` bookings, each for at most `expire_after` seconds.

        `batch` is that of `StuckRanks`.
        """
        self.expired = 0
        """Number of bookings that were released although nobody had reported their end."""
        self.unreported = 0
        """Number of requests that did not fail and whose first token was never reported."""
        self.expire_after = expire_after
        self._most = most
        self._bookings: OrderedDict[str, Booking] = OrderedDict()
        self.ranks: dict[RankName, RankBook] = {}
        """The bookings of each rank; callers only read them."""
        self.stuck = StuckRanks(self.ranks, batch)
        """The ranks that answer nothing."""
        self.overdue = Overdue(self._let_go_unwatched)
        self.picks = 0
        """The highest known number of a pick, of this router or another: as in Lamport's clocks, later
        picks have higher ones."""
        self._now = -math.inf
        self._expires_at = math.inf
        """No booking expires before this time."""
        self.news: set[RankName] = set()
        """The ranks whose bookings have changed; who reads it empties it."""

    def __len__(self) -> int:
        return len(self._bookings)

    @property
    def hears_first_tokens(self) -> bool:
        """Whether first tokens are reported; False until the first report."""
        return not self.overdue.expects_none

    def book(
        self, work: Work, now: float, *, behind: Booking | None = None, is_watched: bool = False
    ) -> Booking:
        """Book work on a rank.

        If another rank does the prefill, by the booking `behind`, on this one only the context counts.
        `is_watched` is as in `Booking`.
        """
        now = self.expire(now)
        if len(self._bookings) >= self._most:
            self._expire(next(iter(self._bookings.values())), now)
        self.picks += 1
        expires = now + self.expire_after
        self._expires_at = min(self._expires_at, expires)
        booking = Booking(
            str(self.picks),
            self.picks,
            work,
            expires,
            since=now,
            late_at=now,
            is_watched=is_watched,
        )
        if behind is not None:
            booking.first_token_at, booking.due_at = now, behind.due_at
        self._bookings[booking.id] = booking
        book = self.ranks.get(work.name)
        tells = not self.overdue.expects_none or (book is not None and book.is_reported)
        self._place(booking, now, is_owed=is_watched or tells)
        self.ranks[work.name].last_pick = booking.number
        return booking

    def started(self, booking_id: str, now: float, work: Work | None = None) -> bool:
        """Record that a request went out; return False if the booking is not known.

        If the request went to another rank than the picked one, `work` is its work there. The last
        reported rank counts; reporting the same rank again changes nothing.
        """
        now = self.expire(now)
        booking = self._bookings.get(booking_id)
        if booking is None:
            return False
        old = booking.work
        is_same = work is None or work.name == old.name
        if is_same and (booking.dispatched or booking.first_token_at is not None):
            return True
        is_owed = self._take(booking, now, "unsent")
        booking.work = old if work is None or is_same else work
        booking.dispatched = True
        booking.since = now
        self._place(booking, now, is_owed=is_owed)
        return True

    def first_token(self, booking_id: str, now: float) -> bool:
        """Release the prefill of a booking; return False if it is not known."""
        now = self.expire(now)
        booking = self._bookings.get(booking_id)
        if booking is None:
            return False
        if booking.first_token_at is None:
            rank = self.ranks[booking.work.name]
            self._overtake(rank, booking, now)
            self.overdue.forget(booking)
            if booking.id in rank.waiting:
                booking.prefill_from = max(booking.since, rank.free_since)
            elif now >= booking.lost_at:
                # Its report counted as lost, so the time when its prefill's turn came is not known.
                booking.prefill_from = None
            elif booking.prefill_from is not None:
                # This first token was presumed too early, and so were those of earlier requests.
                booking.prefill_from = max(booking.prefill_from, rank.reported_at)
            booking.first_token_at = rank.reported_at = now
            self.overdue.count(reported=True)
            self._computed(booking, now)
        self._answered(booking, now)
        return True

    def end(self, booking_id: str, now: float, end: Ending = "finished") -> bool:
        """Release all of a booking; return False if it is not known."""
        now = self.expire(now)
        booking = self._bookings.get(booking_id)
        if booking is None:
            return False
        if end == "expired":
            self._expire(booking, now)
            return True
        if end == "finished":
            # Its first token must have come, reported or not.
            if booking.first_token_at is None:
                self._computed(booking, now)
                self._miss(booking)
            self._answered(booking, now)
        self._end(booking, now, end)
        return True

    def get(self, booking_id: str) -> Booking | None:
        return self._bookings.get(booking_id)

    def answered_at(self, pod: str, ranks: int) -> float:
        """Return when a pod of so many ranks last answered, -inf: never; any thread may ask."""
        books = (self.ranks.get(RankName(pod, rank)) for rank in range(ranks))
        return max((book.answered_at for book in books if book is not None), default=-math.inf)

    def forget(self, pod: str, rank: int) -> None:
        """End all bookings of a rank that is gone."""
        name = RankName(pod, rank)
        book = self.ranks.get(name)
        if book is not None:
            for booking in [*book.in_flight.values()]:
                self._end(booking, self._now)
            self._drop(name)

    def _drop(self, name: RankName) -> None:
        self.stuck.forget(name)
        del self.ranks[name]
        self.news.add(name)

    def engine_ended(self, pod: str, rank: int) -> None:
        """Expect no more answers of a rank whose engine has ended: its requests are lost."""
        book = self.ranks.get(RankName(pod, rank))
        if book is not None:
            book.unanswered.clear()
            book.answered_at = -math.inf
            self.stuck.forget(RankName(pod, rank))
            book.changed()

    def expire(self, now: float) -> float:
        """Release due bookings; return the latest `now` so far, as reports may overtake one another."""
        now = max(now, self._now)
        self._now, stuck, overdue = now, self.stuck, self.overdue
        if now < stuck.due_at and now < overdue.due_at and now < self._expires_at:
            return now
        stuck.expire(now)
        while (booking := overdue.pop(now)) is not None:
            name = booking.work.name
            if name in stuck:
                # Its silence is the engine's, and says nothing about reports.
                overdue.postpone(booking, now)
                continue
            book = self.ranks[name]
            turn = max(booking.since, book.free_since) if book.first is booking else None
            if self._let_go(booking, now):
                booking.prefill_from = turn
                book.changed()
            if not booking.is_watched and now >= booking.lost_at:
                book.unreported.count(reported=False)
                if book.unanswered.pop(booking.id, None) is not None:
                    stuck.ended(name, booking, now, "unsent")
                    book.changed()
            overdue.presumed(booking, now)
        self._expires_at = math.inf
        while self._bookings:
            booking = next(iter(self._bookings.values()))
            if booking.expires > now:
                self._expires_at = booking.expires
                break
            self._expire(booking, now)
        return now

    def _place(self, booking: Booking, now: float, *, is_owed: bool) -> None:
        """Add a booking to its rank; with `is_owed`, its first token or end will be reported."""
        name = booking.work.name
        book = self.ranks.get(name)
        if book is None:
            if len(self.ranks) >= self._most:
                # A pod may go without a call of `forget`; its ranks must not be kept for ever.
                for idle in [name for name, book in self.ranks.items() if not book.in_flight]:
                    self._drop(idle)
            book = self.ranks[name] = RankBook(name, self.news)
        if booking.first_token_at is None:
            self.overdue.expect(booking, book.seconds_ahead(now) + booking.work.prefill, now)
        book.place(booking)
        if is_owed:
            book.unanswered[booking.id] = booking
            self.stuck.sent(name, booking, now)

    def _let_go_unwatched(self) -> None:
        """Wait for no answers whose reports may not come."""
        for name, book in self.ranks.items():
            if book.is_reported:
                continue
            for booking in [*book.unanswered.values()]:
                if not booking.is_watched:
                    del book.unanswered[booking.id]
            if not book.unanswered:
                self.stuck.forget(name)
            book.changed()

    def _miss(self, booking: Booking) -> None:
        self.unreported += 1
        if booking.work.name not in self.stuck:
            self.overdue.miss(booking)

    def _answered(self, booking: Booking, now: float) -> None:
        """Record that a booking's rank works, as its first token or its end shows."""
        name = booking.work.name
        book = self.ranks[name]
        is_first = book.unanswered.pop(booking.id, None) is not None
        book.answered_at = now
        self.stuck.answered(name, booking, now, is_first=is_first)
        book.changed()

    def _expire(self, booking: Booking, now: float) -> None:
        if booking.first_token_at is None:
            self._miss(booking)
        self._end(booking, now)
        self.expired += 1

    def _computed(self, booking: Booking, now: float) -> None:
        """Remove a booking from the waiting ones: its first report shows that its prefill is done.

        `_answered` tells of the change.
        """
        book = self.ranks[booking.work.name]
        book.unreported.count(reported=True)
        book.take_waiting(booking)
        book.free_since = now

    def _overtake(self, book: RankBook, booking: Booking, now: float) -> None:
        """Find the earlier requests of a rank without a first token, where a later one has its own."""
        # Where reports are not waited for, requests leave `waiting` when their first token is presumed.
        line = book.in_flight if self.overdue.expects_none else book.waiting
        if booking.id in line:
            self.overdue.overtaken(line.values(), booking, now)

    def _let_go(self, booking: Booking, now: float) -> bool:
        """Remove a booking from the waiting ones without a known end of its prefill.

        Return False if it did not wait.
        """
        book = self.ranks[booking.work.name]
        if book.first is booking:
            # The next booking's turn comes only now.
            book.free_since = now
        return book.take_waiting(booking)

    def _end(self, booking: Booking, now: float, end: Ending = "failed") -> None:
        if booking.first_token_at is None:
            self._let_go(booking, now)
            self.overdue.forget(booking)
        self._take(booking, now, end)
        del self._bookings[booking.id]

    def _take(self, booking: Booking, now: float, end: Ending) -> bool:
        """Remove a booking from its rank; return whether that still owed an answer to it."""
        name = booking.work.name
        book = self.ranks[name]
        is_owed = book.unanswered.pop(booking.id, None) is not None
        if is_owed:
            self.stuck.ended(name, booking, now, end)
        book.take(booking)
        return is_owed
