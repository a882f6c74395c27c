"""Hands reports on to the router that has the booking, and receives those for our own bookings.

A report waits until Redis has taken it, so it may arrive twice; its receiver checks whether the
booking still exists. Reports wait no longer than a booking lives, and only so many of them.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

MOST_REPORTS = 10_000
"""Most reports that wait: here in total, and in Redis for each router, which takes no more then."""
MOST_REPORT_BYTES = 4096
BATCH = 512
"""Most reports in one call of Redis, and most that are read at once."""

Entry = tuple[bytes, Sequence[bytes]]
"""An entry of a router's stream in Redis: its id, then alternating field names and values."""


class ReportRelay:
    """One router's queues of reports. A report is a serialised ReportRequest.

    A report waits for at most `most_seconds`. `now` is a time of this router's clock, in seconds.
    """

    def __init__(self, most_seconds: float) -> None:
        self.handed_on = 0
        """Reports of others' bookings that were handed on, since the start."""
        self.received = 0
        """Reports of own bookings received from other routers, since the start."""
        self.dropped = 0
        """Reports that waited too long, or that their router did not read before it was given up, since
        the start."""
        self.waiting = 0
        self._most_seconds = most_seconds
        self._outgoing: dict[str, deque[tuple[float, bytes]]] = {}
        """With the time since which each report waits."""
        self._unread: Counter[str] = Counter()
        """Reports in Redis for each router that were handed on since it was last heard of."""
        self._taken: dict[bytes, None] = {}
        """Ids of processed entries of the own stream that are not deleted yet."""

    def add(self, router: str, report: bytes, now: float) -> bool:
        """Queue a report for a router; return False if it is too large or too many wait."""
        if self.waiting >= MOST_REPORTS or len(report) > MOST_REPORT_BYTES:
            return False
        self._outgoing.setdefault(router, deque()).append((now, report))
        self.waiting += 1
        return True

    def batches(self, now: float) -> Iterator[tuple[str, list[bytes]]]:
        """Yield each router with waiting reports, with the first BATCH of them."""
        for router, waiting in [*self._outgoing.items()]:
            while waiting and now - waiting[0][0] >= self._most_seconds:
                self.dropped += self._remove(router, 1)
        for router, waiting in self._outgoing.items():
            yield router, [report for _, report in islice(waiting, BATCH)]

    def confirm(self, router: str, count: int) -> None:
        """Remove the first `count` reports for a router, which Redis has received."""
        count = self._remove(router, count)
        self.handed_on += count
        self._unread[router] += count

    def heard(self, router: str) -> None:
        """Note that a router lives, so that it reads what Redis has for it."""
        self._unread.pop(router, None)

    def drop(self, router: str) -> None:
        self.dropped += self._remove(router, MOST_REPORTS) + self._unread.pop(router, 0)

    def _remove(self, router: str, count: int) -> int:
        """Remove the first `count` reports for a router, or all where it has fewer; return how many."""
        waiting = self._outgoing.get(router)
        if waiting is None:
            return 0
        count = min(count, len(waiting))
        for _ in range(count):
            waiting.popleft()
        self.waiting -= count
        if not waiting:
            del self._outgoing[router]
        return count

    def take(self, entries: Iterable[Entry]) -> list[bytes]:
        """Return the reports in entries of the own stream that were not processed before."""
        reports = []
        for name, fields in entries:
            if name not in self._taken:
                self._taken[name] = None
                if len(fields) == 2 and fields[0] == b"report":
                    reports.append(fields[1])
        self.received += len(reports)
        return reports

    def taken(self) -> list[bytes]:
        """Return the ids of processed entries, which are to be deleted from the stream."""
        return [*self._taken]

    def cleared(self, names: Iterable[bytes]) -> None:
        """Forget the ids of entries that were deleted from the stream."""
        for name in names:
            self._taken.pop(name, None)
