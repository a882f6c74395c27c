"""A life's batches in order: their numbers, and the last of them for replay.

Source: `ZmqEventPublisher` in `vllm/distributed/kv_events.py`.
"""

from collections import deque
from typing import NamedTuple

from warmpath.lab.simworker.engine import BrokenInvariantError


class Frame(NamedTuple):
    """One numbered batch."""

    sequence: int
    payload: bytes


class Journal:
    """Numbers batches from 0 and keeps the last `buffer_steps`, which a replay sends without faults."""

    def __init__(self, buffer_steps: int) -> None:
        self.buffer_steps = buffer_steps
        self.next_sequence = 0
        self._kept: deque[Frame] = deque(maxlen=buffer_steps)

    def append(self, payload: bytes) -> Frame:
        """Add a batch; the oldest is dropped if there are too many."""
        frame = Frame(self.next_sequence, payload)
        self.next_sequence += 1
        self._kept.append(frame)
        return frame

    def since(self, start: int) -> list[Frame]:
        """Return the kept batches from a number on, in order."""
        return [frame for frame in self._kept if frame.sequence >= start]

    def begin_life(self) -> None:
        """Forget the life before, and start from 0 again."""
        self.next_sequence = 0
        self._kept.clear()

    def check(self) -> None:
        """Raise BrokenInvariantError if the kept batches are not the last ones in order."""
        kept = [frame.sequence for frame in self._kept]
        if kept != list(range(self.next_sequence - len(kept), self.next_sequence)):
            raise BrokenInvariantError(f"kept are {kept}, next is {self.next_sequence}")
