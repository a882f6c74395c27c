"""Shares bookings between routers through Redis; the bookings themselves are in `router/load/`."""
