"""Decides when a first token without a report is overdue, and presumed to have come.

The time depends on the gateways. If they report first tokens, a missing report means that the engine
hangs, so the booking goes on waiting and keeps other requests away. If many first tokens are never
reported (a gateway may not report them, or answers may not stream), only the prediction shows when a
prefill is over.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from indexer.invariant import BrokenInvariantError
from router.load.rank_bookings import Booking

UNREPORTED_SHARE = 0.05
"""Share of unreported first tokens above which the router stops waiting for reports."""
UNREPORTED_WEIGHT = 0.02
"""Least weight of the latest first token in that share, a moving average."""
SPARE = 64
"""Outdated entries that the heap may have beyond the number of bookings."""


class Overdue:
    """The times when the first tokens of `waiting` bookings are overdue, by the bookings' clock."""

    def __init__(
        self,
        waiting: Callable[[], Iterable[Booking]],
        *,
        factor: float,
        seconds: float,
        expects_first_tokens: bool,
    ) -> None:
        """Count a report as lost `factor` times the predicted time plus `seconds` after the request."""
        self._waiting = waiting
        self._factor = factor
        self._seconds = seconds
        self._due: list[tuple[float, int, str]] = []
        """A heap of the times when first tokens are overdue; some entries may be outdated."""
        self._counted = 0
        """Number of first tokens that were reported or are known to be unreported."""
        self._unreported = 0.0 if expects_first_tokens else 1.0
        """Share of these first tokens that were not reported, a moving average."""

    def expect(self, booking: Booking, seconds: float, now: float, *, of: int) -> None:
        """Wait for a booking's first token, predicted in `seconds`; `of` is the number of bookings."""
        booking.due_at = min(now + seconds, booking.expires)
        booking.lost_at = min(now + self._factor * seconds + self._seconds, booking.expires)
        booking.late_at = booking.due_at if self.expects_none else booking.lost_at
        heappush(self._due, (booking.late_at, booking.number, booking.id))
        if len(self._due) > 2 * of + SPARE:
            self.tidy()

    def pop(self, now: float) -> tuple[str, float] | None:
        """Remove the entry that is overdue longest; return its booking's id and since when, or None.

        The booking may have ended meanwhile, or its first token may now be overdue at another time.
        """
        if not self._due or self._due[0][0] > now:
            return None
        late_at, _, booking_id = heappop(self._due)
        return booking_id, late_at

    def count(self, *, reported: bool) -> None:
        """Count a first token that was reported, or is known to be unreported."""
        expected_none = self.expects_none
        self._counted += 1
        self._unreported += max(UNREPORTED_WEIGHT, 1 / self._counted) * (
            (not reported) - self._unreported
        )
        if self.expects_none and not expected_none:
            for booking in self._waiting():
                booking.late_at = min(booking.late_at, booking.due_at)
            self.tidy()

    @property
    def expects_none(self) -> bool:
        """Whether too many first tokens are unreported, so that the router waits for no reports."""
        return self._unreported > UNREPORTED_SHARE

    def tidy(self) -> None:
        """Rebuild the heap from the waiting bookings, without outdated entries."""
        self._due = [(one.late_at, one.number, one.id) for one in self._waiting()]
        heapify(self._due)

    def check(self) -> None:
        """Raise BrokenInvariantError if a booking without an entry would wait for ever."""
        due = {(late_at, booking_id) for late_at, _, booking_id in self._due}
        if any((one.late_at, one.id) not in due for one in self._waiting()):
            raise BrokenInvariantError("a booking without an entry would wait for ever")
