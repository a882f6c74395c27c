"""Bookings: the work of picked requests that their pods have not finished yet.

A booking counts from the moment a pod is picked, so that a burst does not pile up on one pod before
any engine has reported load. It holds the tokens to prefill until the first token, then a small share
for decoding until the end. What is never reported expires.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from indexer.index import BrokenInvariantError

DECODING_TOKENS = 32
"""Prefill tokens that a decoding request weighs.

A decode step of one more sequence costs about what 30 prefill tokens do (2 ms at 70 us a token,
`shared/bench/policy-study.md`); a stronger weight made every cell of that study worse.
"""


@dataclass(slots=True)
class Booking:
    """One picked request."""

    pod: str
    rank: int
    tokens: int
    """What it still weighs, in prefill tokens."""
    prompt_tokens: int
    predicted_cached: int
    expires: float
    compared: bool = False
    """Whether a report has already said what the engine found cached."""

    def reported(self, cached: int) -> int | None:
        """Return what the engine found cached, once a booking; then None."""
        if self.compared:
            return None
        self.compared = True
        return cached


@dataclass(slots=True)
class Load:
    """What is booked on one rank."""

    tokens: int = 0
    requests: int = 0


class Bookings:
    """All bookings of one router. Times are seconds of the caller's clock."""

    def __init__(self, *, expire_after: float, most: int, new_id: Callable[[], str]) -> None:
        self.expired = 0
        self._expire_after = expire_after
        self._most = most
        self._new_id = new_id
        self._bookings: OrderedDict[str, Booking] = OrderedDict()
        self._loads: dict[tuple[str, int], Load] = {}

    def __len__(self) -> int:
        return len(self._bookings)

    def book(self, pod: str, rank: int, *, uncached: int, cached: int, now: float) -> str:
        """Book `uncached` tokens of prefill on a rank; return the booking's id."""
        self.expire(now)
        if len(self._bookings) >= self._most:
            self._end(next(iter(self._bookings)))
            self.expired += 1
        booking_id = self._new_id()
        booking = Booking(
            pod,
            rank,
            tokens=uncached + DECODING_TOKENS,
            prompt_tokens=uncached + cached,
            predicted_cached=cached,
            expires=now + self._expire_after,
        )
        self._bookings[booking_id] = booking
        load = self._loads.setdefault((pod, rank), Load())
        load.tokens += booking.tokens
        load.requests += 1
        return booking_id

    def first_token(self, booking_id: str) -> bool:
        """Release the prefill of a booking; False where it is not known."""
        booking = self._bookings.get(booking_id)
        if booking is None:
            return False
        done = booking.tokens - DECODING_TOKENS
        booking.tokens -= done
        self._loads[booking.pod, booking.rank].tokens -= done
        return True

    def finish(self, booking_id: str) -> bool:
        """Release all of a booking; False where it is not known."""
        known = booking_id in self._bookings
        if known:
            self._end(booking_id)
        return known

    def get(self, booking_id: str) -> Booking | None:
        """Return a booking; None where it is not known."""
        return self._bookings.get(booking_id)

    def load(self, pod: str, rank: int) -> Load:
        """Return what is booked on a rank."""
        return self._loads.get((pod, rank), Load())

    def expire(self, now: float) -> None:
        """Release the bookings that are past their time."""
        while self._bookings:
            booking_id, booking = next(iter(self._bookings.items()))
            if booking.expires > now:
                return
            self._end(booking_id)
            self.expired += 1

    def _end(self, booking_id: str) -> None:
        booking = self._bookings.pop(booking_id)
        name = (booking.pod, booking.rank)
        load = self._loads[name]
        load.tokens -= booking.tokens
        load.requests -= 1
        if not load.requests:
            del self._loads[name]

    def check(self) -> None:
        """Raise BrokenInvariantError where the loads are not the sums of the bookings."""
        loads: dict[tuple[str, int], Load] = {}
        for booking in self._bookings.values():
            load = loads.setdefault((booking.pod, booking.rank), Load())
            load.tokens += booking.tokens
            load.requests += 1
        if loads != self._loads:
            raise BrokenInvariantError("the loads are not the sums of the bookings")
