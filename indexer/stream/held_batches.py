"""The live batches that are held while a replay runs, up to a bound."""

from collections import deque

from warmpath.process.invariant import BrokenInvariantError


class HeldBatches:
    """Batches with their sequences, in the order in which they came, of at most `max_bytes`.

    A single batch may be larger.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._batches: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def last(self) -> int:
        """The sequence of the last held batch; -1 where none is held."""
        return self._batches[-1][0] if self._batches else -1

    def hold(self, sequence: int, payload: bytes) -> bool:
        """Hold one more batch; return whether there was room. Without room, earlier ones are dropped."""
        has_room = self._bytes + len(payload) <= self._max_bytes
        if not has_room:
            # The batches let go show as a gap after the replay, and are asked for again.
            self.drop()
        self._batches.append((sequence, payload))
        self._bytes += len(payload)
        return has_room

    def take(self) -> deque[tuple[int, bytes]]:
        """Return all held batches, and hold none from here on."""
        taken, self._batches = self._batches, deque()
        self._bytes = 0
        return taken

    def drop(self) -> None:
        """Let all batches go."""
        self._batches.clear()
        self._bytes = 0

    def check(self) -> None:
        """Raise BrokenInvariantError where the bytes do not add up."""
        if self._bytes != sum(len(payload) for _, payload in self._batches):
            raise BrokenInvariantError("the held bytes do not add up")
