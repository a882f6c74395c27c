"""The last deltas, numbered, for watchers that were away for a moment."""

from collections import deque

from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

DELTA_BYTES = 64
"""An estimate of a delta's bytes in memory beside its serialized ones."""


class Journal:
    """Holds deltas of at most `max_bytes`; `epoch` names this life of the publisher.

    They are kept serialized, as messages would take seven times as many bytes.
    """

    def __init__(self, epoch: str, max_bytes: int) -> None:
        self.epoch = epoch
        self.sequence = 0
        """The last delta's number; 0 before the first."""
        self.bytes = 0
        self._max_bytes = max_bytes
        self._deltas: deque[bytes] = deque()

    def add(self, state: pb.RankState, changes: list[pb.Change]) -> None:
        """Add a numbered delta, letting the oldest go where there is no room."""
        self.sequence += 1
        delta = pb.Delta(sequence=self.sequence, state=state, changes=changes)
        self._deltas.append(delta.SerializeToString())
        self.bytes += DELTA_BYTES + len(self._deltas[-1])
        while self.bytes > self._max_bytes:
            self.bytes -= DELTA_BYTES + len(self._deltas.popleft())

    def reaches(self, epoch: str, sequence: int) -> bool:
        """Whether the journal has every delta after a position; never for another `epoch`."""
        first = self.sequence - len(self._deltas) + 1
        return epoch == self.epoch and first - 1 <= sequence <= self.sequence

    def after(self, sequence: int, most: int) -> list[pb.Delta] | None:
        """Return up to `most` deltas after a position; None where some are gone already."""
        if not self.reaches(self.epoch, sequence):
            return None
        missing = self.sequence - sequence
        start = len(self._deltas) - missing
        found = (self._deltas[start + n] for n in range(min(missing, most)))
        return [pb.Delta.FromString(delta) for delta in found]
