"""Replica mode: a router's copy of the shared index, kept current; look-ups in Redis are `query`."""
