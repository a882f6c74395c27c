"""How busy a rank is: bookings, engines' metrics, and their correction; no choice is made."""
