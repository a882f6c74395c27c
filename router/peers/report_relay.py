"""Reports on their way to the router that has the booking: those that go from here, and those that came.

Each is sent until Redis has answered, so one may come twice; whoever takes it asks whether the booking
still is.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from indexer.invariant import BrokenInvariantError

MOST_REPORTS = 10_000
"""Reports that wait to be handed on, here in all and in Redis for each router."""
MOST_REPORT_BYTES = 4096
BATCH = 512
"""Reports of one call, and of one read."""

Entry = tuple[bytes, Sequence[bytes]]
"""Of a router's stream in Redis: an id, then names and values."""


class ReportRelay:
    """One router's part in it. A report is a serialised ReportRequest."""

    def __init__(self) -> None:
        self.handed_on = 0
        """Reports of others' bookings that were handed on, since the start."""
        self.received = 0
        """Reports of own bookings that were handed on to here."""
        self.dropped = 0
        """Reports whose router went before they could be handed on."""
        self._outgoing: dict[str, deque[bytes]] = {}
        self._waiting = 0
        self._taken: dict[bytes, None] = {}
        """Ids of entries of the own stream that were handled and may be there yet."""

    # From here

    def add(self, router: str, report: bytes) -> bool:
        """Have a report handed on to a router; False where it is too large, or too many wait."""
        if self._waiting >= MOST_REPORTS or len(report) > MOST_REPORT_BYTES:
            return False
        self._outgoing.setdefault(router, deque()).append(report)
        self._waiting += 1
        return True

    def batches(self) -> Iterator[tuple[str, list[bytes]]]:
        """Yield, for each router for which any wait, the first of them."""
        for router, waiting in self._outgoing.items():
            yield router, list(islice(waiting, BATCH))

    def confirm(self, router: str, count: int) -> None:
        """Take note that Redis has so many of those that wait for a router."""
        waiting = self._outgoing.get(router)
        if waiting is None:
            return
        for _ in range(count):
            waiting.popleft()
        self._waiting -= count
        self.handed_on += count
        if not waiting:
            del self._outgoing[router]

    def drop(self, router: str) -> None:
        """Drop what waits for a router that is gone."""
        lost = self._outgoing.pop(router, ())
        self._waiting -= len(lost)
        self.dropped += len(lost)

    # To here

    def take(self, entries: Iterable[Entry]) -> list[bytes]:
        """Return the reports among entries of the own stream that were not taken before."""
        reports = []
        for name, fields in entries:
            if name not in self._taken:
                self._taken[name] = None
                if len(fields) == 2 and fields[0] == b"report":
                    reports.append(fields[1])
        self.received += len(reports)
        return reports

    def taken(self) -> list[bytes]:
        """Return the ids of entries that were taken and may be there yet."""
        return [*self._taken]

    def cleared(self, names: Iterable[bytes]) -> None:
        """Take note that the entries with these ids are there no more."""
        for name in names:
            self._taken.pop(name, None)

    def check(self) -> None:
        """Raise BrokenInvariantError where the counts are wrong, or too much is kept."""
        if self._waiting != sum(map(len, self._outgoing.values())):
            raise BrokenInvariantError("the reports that wait do not add up")
        if any(not waiting for waiting in self._outgoing.values()):
            raise BrokenInvariantError("a router is kept for whom no report waits")
        if len(self._taken) > 2 * BATCH:
            raise BrokenInvariantError(f"{len(self._taken)} reports are kept for handled")
