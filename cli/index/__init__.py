"""`warmpath index`: surveys, checks, sweeps and dumps the shared index; serving never uses it."""
