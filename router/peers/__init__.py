"""Shares bookings between routers through Redis; the bookings themselves are `router/load/`."""
