"""Bookings shared between routers through Redis; the bookings themselves are `load`."""
