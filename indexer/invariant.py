"""The error of a part that contradicts itself."""


class BrokenInvariantError(Exception):
    """A stateful part contradicts itself: a bug of ours, never of a peer's."""
