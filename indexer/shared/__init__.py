"""The shared index in Redis."""
