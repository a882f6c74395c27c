"""The moment of the engine that a pod's record is known to show, by the reader's own clock. Sans-I/O.

The record counts its confirmations. Each says by how much the index was behind the engine, at most, when
Redis took the confirmation before it; the writer knows that by its own clock, from the reply. A reader
that finds a new confirmation knows that Redis took it after the reader had asked for the record the last
time before. So no two clocks are compared, and no lease and no server's time matters: a record whose
confirmations do not move shows an ever older moment.
"""

import math

from warmpath.indexer.shared.layout.record import Record


class Moment:
    """The last moment up to which a pod's record shows the engine."""

    def __init__(self) -> None:
        self.at = -math.inf
        """By the reader's clock, in seconds; minus infinity until two confirmations came."""
        self._last: tuple[int, int] | None = None
        """Claim number and confirmation that were read last; None before that."""
        self._taken_after = -math.inf
        """A time before Redis took that confirmation."""
        self._asked_at = -math.inf
        """When the record was asked for, in the last good reading."""

    def read(self, record: Record | None, asked_at: float) -> bool:
        """Take a record that was asked for then; return False where it is older than the one before."""
        before, asked_before = self._last, self._asked_at
        self._asked_at = asked_at
        if record is None or not record.sound:
            return True
        self._last = record.token, record.confirmation
        if before is None or self._last < before:
            self.at = self._taken_after = -math.inf
            return before is None
        if self._last > before:
            if record.behind is not None:
                is_next = before == (record.token, record.confirmation - 1)
                taken_after = self._taken_after if is_next else asked_before
                self.at = max(self.at, taken_after - record.behind)
            self._taken_after = asked_before
        return True
