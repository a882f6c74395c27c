"""Live batches that are lost, doubled, late or out of order on their way, by rate or by count.

Only the live stream has faults: replay reads the journal, which comes before the outlet. Sans-I/O: a
batch and the time go in, the batches to send now come out.
"""

import random
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from warmpath.lab.simworker.engine import BrokenInvariantError

KINDS = ("drop", "duplicate", "delay", "reorder")
MOST_NEXT = 1_000_000
MOST_DELAY_SECONDS = 3600.0


class Frame(NamedTuple):
    """One numbered batch, encoded."""

    sequence: int
    payload: bytes


class FaultError(ValueError):
    """A fault's value is wrong; the message names the field and its limits."""


@dataclass(frozen=True, slots=True)
class EventFaults:
    """The faults of live batches. A rate is the share of batches that have the fault, 0 to 1."""

    drop: float = 0.0
    """The share that is never sent."""
    duplicate: float = 0.0
    """The share that is sent twice."""
    delay: float = 0.0
    """The share that is sent `delay_seconds` late, as are the batches behind: the connection stalls."""
    reorder: float = 0.0
    """The share that is sent behind its successor, or `delay_seconds` late if none follows."""
    drop_next: int = 0
    """How many of the next batches are dropped, whatever `drop` is; likewise the three below."""
    duplicate_next: int = 0
    delay_next: int = 0
    reorder_next: int = 0
    delay_seconds: float = 0.2
    seed: int = 0
    """With the same seed the same batches have the same faults."""

    def changed(self, changes: dict[str, Any]) -> "EventFaults":
        """Return the faults with some fields changed. Raises FaultError."""
        known = {field.name for field in fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise FaultError(
                    f"events.{name}: is not a field; the fields are {', '.join(sorted(known))}"
                )
            if name in KINDS:
                _number(name, value, float, 1)
            elif name == "delay_seconds":
                _number(name, value, float, MOST_DELAY_SECONDS)
            else:
                _number(name, value, int, MOST_NEXT if name != "seed" else (1 << 63) - 1)
        return replace(self, **changes)


def _number(name: str, value: object, kind: type[float], most: float) -> None:
    right = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not right or not 0 <= value <= most:  # type: ignore[operator]  # a number by the line before
        what = "a whole number" if kind is int else "a number"
        raise FaultError(f"events.{name}: {what} from 0 to {most}")


class FaultyOutlet:
    """Drops, repeats or delays batches before the socket. Times are seconds of any steady clock."""

    def __init__(self, faults: EventFaults | None = None) -> None:
        self.faults = faults or EventFaults()
        self.counts = dict.fromkeys((*KINDS, "taken", "sent"), 0)
        """Counts of batches: taken, sent (a duplicate counts again), and those with each fault."""
        self._rng = random.Random(self.faults.seed)
        self._line: deque[tuple[float, Frame]] = deque()
        """Batches with the time at which each is to be sent, in order of sending."""
        self._overtaken: tuple[float, list[Frame]] | None = None
        """A batch (or its copies) to send after the next one, and when to send it if none follows."""

    def configure(self, faults: EventFaults) -> None:
        """Set the faults from the next batch on; batches held back stay so."""
        self.faults = faults
        self._rng = random.Random(faults.seed)

    def push(self, now: float, frame: Frame) -> list[Frame]:
        """Take a batch; return the batches to send now."""
        self.counts["taken"] += 1
        # Every fault is drawn whatever its rate, so that a change of one rate leaves the others' draws.
        fates = {kind: self._rng.random() < getattr(self.faults, kind) for kind in KINDS}
        counted = {
            f"{kind}_next": getattr(self.faults, f"{kind}_next") - 1
            for kind in KINDS
            if getattr(self.faults, f"{kind}_next")
        }
        if counted:
            self.faults = replace(self.faults, **counted)
        for kind in KINDS:
            fates[kind] |= f"{kind}_next" in counted
        if fates["drop"]:
            self.counts["drop"] += 1
            return self.release(now)
        copies = [frame]
        if fates["duplicate"]:
            self.counts["duplicate"] += 1
            copies.append(frame)
        if fates["reorder"] and self._overtaken is None:
            self.counts["reorder"] += 1
            self._overtaken = (now + self.faults.delay_seconds, copies)
            return self.release(now)
        due = now
        if fates["delay"]:
            self.counts["delay"] += 1
            due += self.faults.delay_seconds
        self._queue(due, copies)
        if self._overtaken is not None:
            self._queue(due, self._overtaken[1])
            self._overtaken = None
        return self.release(now)

    def _queue(self, due: float, frames: list[Frame]) -> None:
        if self._line:
            due = max(due, self._line[-1][0])
        self._line += [(due, frame) for frame in frames]

    def release(self, now: float) -> list[Frame]:
        """Return the batches that have been held back for long enough."""
        if self._overtaken is not None and self._overtaken[0] <= now:
            self._queue(*self._overtaken)
            self._overtaken = None
        ready = []
        while self._line and self._line[0][0] <= now:
            ready.append(self._line.popleft()[1])
        self.counts["sent"] += len(ready)
        return ready

    @property
    def due(self) -> float | None:
        """The time of the next release; None while no batch is held back."""
        times = [self._line[0][0]] if self._line else []
        if self._overtaken is not None:
            times.append(self._overtaken[0])
        return min(times, default=None)

    @property
    def held(self) -> int:
        """Number of batches held back, duplicates counted."""
        return len(self._line) + (len(self._overtaken[1]) if self._overtaken else 0)

    def begin_life(self) -> None:
        """Forget the batches held back: they died with the process. Counts start at 0 again."""
        self._line.clear()
        self._overtaken = None
        self.counts = dict.fromkeys(self.counts, 0)

    def check(self) -> None:
        """Raise BrokenInvariantError if a batch was lost and not dropped, or sent out of order."""
        counts = self.counts
        came = counts["taken"] + counts["duplicate"] - counts["drop"]
        if came != counts["sent"] + self.held:
            raise BrokenInvariantError(f"{came} batches to send, {counts}, {self.held} held")
        times = [due for due, _ in self._line]
        if times != sorted(times):
            raise BrokenInvariantError("a batch is due before the one ahead of it in the line")
