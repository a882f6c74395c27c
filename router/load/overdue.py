"""Decides when a first token without a report is overdue, and presumed to have come.

The time depends on the gateways. If they report first tokens, a missing report means that the engine
hangs, so the booking goes on waiting and keeps other requests away. If many first tokens are never
reported (a gateway may not report them, or answers may not stream), only the prediction shows when a
prefill is over.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from warmpath.process.ranking import Ranking
from warmpath.router.load.rank_bookings import UNREPORTED_SHARE, Booking, Unreported


@dataclass(frozen=True, slots=True)
class Precedence:
    """The order of prompts: by how much shorter ones go before longer ones.

    The queue releases requests in this order, and engines may begin prompts in it
    (`PickResponse.engine_priority`). It also tells a passed request from one whose report is lost.
    """

    times: float
    """A request whose prefill is s seconds shorter goes before those that arrived up to `times` s
    earlier."""
    most_seconds: float = math.inf
    """No request goes before one that arrived more than this earlier."""

    def place(self, arrived: float, prefill: float) -> float:
        """Return the number by which a request is ordered, the least first.

        It and `arrived` are seconds of one clock; `prefill` are the seconds to compute the prompt.
        """
        return arrived + min(self.times * prefill, self.most_seconds)


FIRST_COME = Precedence(0.0)
"""The order of first come, first served."""


LATE_FACTOR, LATE_SECONDS = 4.0, 30.0
"""Multiple of its predicted time, plus seconds, after which a first token's report counts as lost."""
LEAST_TIMES = 10.0
"""Least multiple of its prefill for which a prompt may stand behind later ones: engines may let short
prompts pass of their own accord, whatever `queue.prefill-times` says."""
OVERTAKEN_SECONDS = 1.0
"""Least time between two times that a request is overtaken (`Overdue.overtaken`): the reports of one
engine step may come in any order."""
REPORTED_SHARE = 0.02
"""Share of unreported first tokens below which the router waits for reports again. A share near a single
limit would cross it often."""
POSTPONED_SECONDS = 10.0
"""How much longer a report is waited for where the engine itself is silent."""


class Overdue:
    """The times when first tokens are overdue, in seconds of the bookings' clock.

    It has the bookings whose first token may still be reported. Each is overdue twice if the router
    presumes the first token to have come before it gives the report up for lost.
    """

    def __init__(self, on_silence: Callable[[], None]) -> None:
        """Call `on_silence` when `expects_none` becomes true."""
        self.precedence = FIRST_COME
        """The order in which engines may begin prompts."""
        self._on_silence = on_silence
        self.expects_none = True
        """Whether too many first tokens are unreported, or none was reported yet, so that the router
        waits for no reports."""
        self._unreported = Unreported()
        self._due: Ranking[Booking] = Ranking()
        """The awaited bookings, by the time when their first token is overdue."""
        self.due_at = math.inf
        """No first token is overdue before this time."""

    def expect(self, booking: Booking, seconds: float, now: float) -> None:
        """Wait for a booking's first token, predicted in `seconds`."""
        booking.due_at = min(now + seconds, booking.expires)
        booking.lost_at = min(now + LATE_FACTOR * seconds + LATE_SECONDS, booking.expires)
        booking.late_at = booking.due_at if self.expects_none else booking.lost_at
        booking.is_missed = False
        booking.overtaken_at = None
        self._put(booking)

    def overtaken(self, line: Iterable[Booking], by: Booking, now: float) -> None:
        """Handle the first token of `by`, where requests before it in their rank's `line` have none.

        Engines begin prompts in the order in which they come, or let short ones pass long ones. Neither
        explains why `by` is first: the second time this happens to a request, the report of its first
        token, if that should have come by now, is lost.
        """
        # The order that favours short prompts most.
        times = max(self.precedence.times, LEAST_TIMES)
        place = by.since + times * by.work.prefill
        for booking in line:
            if booking is by:
                return
            before = booking.overtaken_at
            # The test that ends most rounds comes first: a line may have hundreds of requests.
            if before is not None and (now < before + OVERTAKEN_SECONDS or now < booking.due_at):
                continue
            if booking.first_token_at is not None or booking.is_missed:
                continue
            if place < booking.since + times * booking.work.prefill:
                continue
            if before is None:
                booking.overtaken_at = now
            else:
                booking.lost_at = booking.late_at = now
                self._put(booking)

    def _put(self, booking: Booking) -> None:
        self.due_at = min(self.due_at, booking.late_at)
        self._due.put(booking, (booking.late_at, booking.number))

    def forget(self, booking: Booking) -> None:
        """Wait no longer for a booking's first token."""
        self._due.drop(booking)

    def pop(self, now: float) -> Booking | None:
        """Remove and return the booking whose first token is overdue longest; None if none is."""
        if not self._due:
            self.due_at = math.inf
            return None
        (self.due_at, _), booking = self._due.first
        if self.due_at > now:
            return None
        self._due.drop(booking)
        return booking

    def presumed(self, booking: Booking, now: float) -> None:
        """Handle a booking that was overdue: its first token is presumed to have come."""
        if now >= booking.lost_at:
            self.miss(booking)
        else:
            booking.late_at = booking.lost_at
            self._put(booking)

    def postpone(self, booking: Booking, now: float) -> None:
        booking.lost_at = booking.late_at = now + POSTPONED_SECONDS
        self._put(booking)

    def miss(self, booking: Booking) -> None:
        """Count a booking's first token as unreported, once."""
        if not booking.is_missed:
            booking.is_missed = True
            self.forget(booking)
            self.count(reported=False)

    def count(self, *, reported: bool) -> None:
        """Count a first token that was reported, or is known to be unreported."""
        expected_none = self.expects_none
        self._unreported.count(reported=reported)
        limit = REPORTED_SHARE if expected_none else UNREPORTED_SHARE
        self.expects_none = self._unreported.share > limit
        if self.expects_none and not expected_none:
            awaited = [booking for _, booking in self._due]
            for booking in awaited:
                booking.late_at = min(booking.late_at, booking.due_at)
            self._due = Ranking()
            for booking in sorted(awaited, key=lambda one: one.late_at):
                self._put(booking)
            self._on_silence()
