"""The composition root in five builders, each at most 80 lines of calls."""
