"""Lets a booked request go out to another rank than the picked one, with the same work there."""

from dataclasses import replace

from warmpath.router.load.bookings import Bookings


def started_on(
    bookings: Bookings, booking_id: str, now: float, pod: str | None, rank: int = 0
) -> bool:
    booking = bookings.get(booking_id)
    if booking is None or pod is None:
        return bookings.started(booking_id, now)
    return bookings.started(booking_id, now, replace(booking.work, pod=pod, rank=rank))
