"""Live batches that are lost, doubled, late or out of order on their way, by rate or by count.

Only the live stream suffers: replay reads the journal, which is before this. Sans-I/O: a batch and the
time go in, what is to be sent now comes out.
"""

import random
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any

from simworker.engine import BrokenInvariantError
from simworker.events.journal import Frame

KINDS = ("drop", "duplicate", "delay", "reorder")
MOST_NEXT = 1_000_000
MOST_DELAY_SECONDS = 3600.0


class FaultError(ValueError):
    """A fault that cannot be: names the field and its limits."""


@dataclass(frozen=True, slots=True)
class EventFaults:
    """What is done to live batches. A rate is the share of batches that meet this fate, 0 to 1."""

    drop: float = 0.0
    """Never sent."""
    duplicate: float = 0.0
    """Sent twice."""
    delay: float = 0.0
    """Sent `delay_seconds` later, and so is what comes after it: a connection that stalls."""
    reorder: float = 0.0
    """Sent after the batch that follows it, or `delay_seconds` later where none follows."""
    drop_next: int = 0
    """So many of the next batches, whatever the rate; likewise for the others."""
    duplicate_next: int = 0
    delay_next: int = 0
    reorder_next: int = 0
    delay_seconds: float = 0.2
    seed: int = 0
    """The same batches meet the same fates again with the same seed."""

    def changed(self, changes: dict[str, Any]) -> "EventFaults":
        """Return these with some fields changed. Raises FaultError."""
        known = {field.name for field in fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise FaultError(
                    f"events.{name}: is no fault; there are {', '.join(sorted(known))}"
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
    """Stands between numbering and sending. Times are seconds of any steady clock."""

    def __init__(self, faults: EventFaults | None = None) -> None:
        self.faults = faults or EventFaults()
        self.counts = dict.fromkeys((*KINDS, "taken", "sent"), 0)
        """Batches taken and sent, duplicates counted, and those that met each fate."""
        self._rng = random.Random(self.faults.seed)
        self._line: deque[tuple[float, Frame]] = deque()
        """When each is to be sent; in order of sending."""
        self._overtaken: tuple[float, list[Frame]] | None = None
        """Waits for the next batch to go first, but not beyond the time."""

    def configure(self, faults: EventFaults) -> None:
        """Do this from the next batch on; what is held back stays so."""
        self.faults = faults
        self._rng = random.Random(faults.seed)

    def push(self, now: float, frame: Frame) -> list[Frame]:
        """Take a batch; return what is to be sent now."""
        self.counts["taken"] += 1
        # All fates are drawn whatever the rates are, so that a change of one leaves the others'.
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
        """Return what has been held back for long enough."""
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
        """When something is to be released; None while nothing is held back."""
        times = [self._line[0][0]] if self._line else []
        if self._overtaken is not None:
            times.append(self._overtaken[0])
        return min(times, default=None)

    @property
    def held(self) -> int:
        """Batches held back, duplicates counted."""
        return len(self._line) + (len(self._overtaken[1]) if self._overtaken else 0)

    def begin_life(self) -> None:
        """Forget what is held back: it died with the process. Counts begin anew."""
        self._line.clear()
        self._overtaken = None
        self.counts = dict.fromkeys(self.counts, 0)

    def check(self) -> None:
        """Raise BrokenInvariantError where a batch is lost but not dropped, or sent for nothing."""
        counts = self.counts
        came = counts["taken"] + counts["duplicate"] - counts["drop"]
        if came != counts["sent"] + self.held:
            raise BrokenInvariantError(f"{came} batches to send, {counts}, {self.held} held")
        times = [due for due, _ in self._line]
        if times != sorted(times):
            raise BrokenInvariantError("a batch would be sent before one ahead of it")
