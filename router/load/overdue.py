"""First tokens that no report tells of: when each is overdue, and taken for come.

It depends on gateways. Where they report first tokens, one that does not come is an engine that hangs,
and nothing more is to be sent there. Where many are never reported (a gateway does not, or answers do
not stream) only the prediction tells when a prefill is over.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from indexer.invariant import BrokenInvariantError
from router.load.rank_bookings import Booking

SILENT_SHARE = 0.05
"""The share of first tokens, never reported, from which on none is waited for."""
SILENT_WEIGHT = 0.02
"""Of the last one in that share."""
SPARE = 64
"""Entries that no longer hold and are kept, beside as many as there are bookings."""


class Overdue:
    """When the first tokens of `waiting` bookings are overdue. Times are of their clock."""

    def __init__(
        self,
        waiting: Callable[[], Iterable[Booking]],
        *,
        factor: float,
        seconds: float,
        expects_first_tokens: bool,
    ) -> None:
        """Take a first token for lost `factor` times its predicted time and `seconds` after that."""
        self._waiting = waiting
        self._factor = factor
        self._seconds = seconds
        self._due: list[tuple[float, int, str]] = []
        """A heap of when first tokens are overdue, with entries that hold no longer among them."""
        self._heard = 0
        """Of how many first tokens it is known whether they were reported."""
        self._silent = 0.0 if expects_first_tokens else 1.0
        """The share that were not, a moving average."""

    def expect(self, booking: Booking, seconds: float, now: float, *, of: int) -> None:
        """Wait for a first token that is predicted in so many seconds, one `of` so many bookings."""
        booking.due_at = min(now + seconds, booking.expires)
        booking.lost_at = min(now + self._factor * seconds + self._seconds, booking.expires)
        booking.late_at = booking.due_at if self._is_silent else booking.lost_at
        heappush(self._due, (booking.late_at, booking.number, booking.id))
        if len(self._due) > 2 * of + SPARE:
            self.tidy()

    def pop(self, now: float) -> tuple[str, float] | None:
        """Return a booking's id and when it was overdue, the earliest first; None where none is by now.

        The booking may have ended meanwhile, or be waited for until another time.
        """
        if not self._due or self._due[0][0] > now:
            return None
        late_at, _, booking_id = heappop(self._due)
        return booking_id, late_at

    def heard(self, *, silent: bool) -> None:
        """Take note of whether a first token was reported."""
        was_silent = self._is_silent
        self._heard += 1
        self._silent += max(SILENT_WEIGHT, 1 / self._heard) * (silent - self._silent)
        if self._is_silent and not was_silent:
            for booking in self._waiting():
                booking.late_at = min(booking.late_at, booking.due_at)
            self.tidy()

    @property
    def _is_silent(self) -> bool:
        """Whether so many first tokens are not reported that none is waited for."""
        return self._silent > SILENT_SHARE

    def tidy(self) -> None:
        """Keep only entries that hold, at the times that their bookings say now."""
        self._due = [(one.late_at, one.number, one.id) for one in self._waiting()]
        heapify(self._due)

    def check(self) -> None:
        """Raise BrokenInvariantError where a booking waits that would do so for ever."""
        due = {(late_at, booking_id) for late_at, _, booking_id in self._due}
        if any((one.late_at, one.id) not in due for one in self._waiting()):
            raise BrokenInvariantError("a booking waits that would do so for ever")
