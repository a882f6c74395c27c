"""warmpath fleet: routers over a shared index, without Docker."""
