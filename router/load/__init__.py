"""The load of each rank: bookings, corrected by engines' metrics and gateways; no choice is made."""
