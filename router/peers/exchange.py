"""The Redis commands by which routers share bookings, made and answered in rounds. No sockets.

Each router writes its bookings to a Redis key of its own, which may lie on any node of a Redis Cluster,
and reads the other routers' keys (`received.py`). A report that reaches another router than the one that
booked is handed on through a stream in Redis, which the latter reads.

    names.routers      hash: router -> server time (ms) at which it last enrolled
    names.load(R)      R's bookings, and marks of the prompts on their way, as `RouterSums`, in
                       MessagePack; expires unless R renews it
    names.reports(R)   stream of serialised ReportRequests for R's bookings, field `report`

Clocks of routers are never compared: a value has ages, which count from the time it was read.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from warmpath.indexer.believed import Believed
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import fingerprint
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Call, Command, Reply, script
from warmpath.router.load.bookings import Bookings
from warmpath.router.load.other_routers import rank_sums
from warmpath.router.peers.booking_id import router_of
from warmpath.router.peers.marks import marked
from warmpath.router.peers.received import (
    EXPIRE_SECONDS,
    FORGET_SECONDS,
    MOST_MARKED,
    ReceivedBookings,
    RouterSums,
)

HEARTBEAT_SECONDS = 1.0
"""Seconds after which a router writes its bookings again even without a change."""


MOST_REPORTS = 10_000
"""Most reports that wait: here in total, and in Redis for each router, which takes no more then."""
MOST_REPORT_BYTES = 4096
BATCH = 512
"""Most reports in one call of Redis, and most that are read at once."""

Entry = tuple[bytes, Sequence[bytes]]
"""An entry of a router's stream in Redis: its id, then alternating field names and values."""


class ReportRelay:
    """One router's queues of reports. A report is a serialised ReportRequest.

    A report waits until Redis has taken it, so it may arrive twice; its receiver checks whether the
    booking still exists. It waits for at most `most_seconds`, as long as a booking lives. `now` is a
    time of this router's clock, in seconds.
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
        """The waiting reports by router, each with the time since which it waits."""
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
        """Note that a router lives, so that it reads the reports that Redis has for it."""
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


class PeerBookings:
    """One router's side of sharing bookings. `now` is a time of its clock, in seconds.

    In each round, call `ask`, and then `answer` with the replies to the commands that it returned.
    """

    def __init__(
        self,
        router: str,
        names: KeyNames,
        bookings: Bookings,
        believed: Believed,
        *,
        hash_seed: str = "",
    ) -> None:
        """`router` is this router's unique name (`router.peers.booking_id`)."""
        self.router = router
        self.is_connected = False
        """Whether Redis answered the last round without an error."""
        self.problem = ""
        """The error of the last round; empty if Redis answered it."""
        self.problem_since = 0.0
        """The time of the first of the rounds in a row that had an error."""
        self.writes = 0
        self.failures = 0
        """Number of rounds with an error among the replies."""
        self.relay = ReportRelay(bookings.expire_after)
        self._seed = fingerprint("", hash_seed)
        self.received = ReceivedBookings(router, self._seed, gone=self.relay.drop)
        self._names = names
        self._bookings = bookings
        self._believed = believed
        self._asked_at = -math.inf
        self._purposes: list[tuple[str, Any]] = []
        """The purposes of the commands whose replies are awaited."""
        self._number = 0
        self._versions: dict[RankName, tuple[int, int]] = {}
        """Versions of the bookings that were written last, by rank."""
        self._written_at = -math.inf
        self._enrolled_at = -math.inf

    def ask(self, now: float) -> list[Command | Call]:
        now = self._asked_at = self._bookings.expire(now)
        commands: list[Command | Call] = []
        self._purposes = []

        def add(command: Command | Call, purpose: str, what: Any = None) -> None:
            commands.append(command)
            self._purposes.append((purpose, what))

        if now - self._enrolled_at >= HEARTBEAT_SECONDS:
            times = round(EXPIRE_SECONDS * 1000), round(FORGET_SECONDS * 1000)
            add(Call(script("enrol"), (self._names.routers,), (self.router, *times)), "enrol")
        versions = {
            name: (book.version, book.last_pick)
            for name, book in self._bookings.ranks.items()
            if book.in_flight
        }
        if versions != self._versions or now - self._written_at >= HEARTBEAT_SECONDS:
            add(self._write(now), "write", versions)
        for router, batch in self.relay.batches(now):
            bounds = MOST_REPORTS, round(self._bookings.expire_after * 1000)
            keys = (self._names.reports(router),)
            add(Call(script("hand_on"), keys, (*bounds, *batch)), "hand on", router)
        stream = self._names.reports(self.router)
        if ids := self.relay.taken():
            add(Command(("XDEL", stream, *ids)), "clear", ids)
        add(Command(("XRANGE", stream, "-", "+", "COUNT", str(BATCH))), "take")
        for router in self.received.to_read():
            add(Command(("GET", self._names.load(router))), "read", router)
        return commands

    def answer(self, replies: Sequence[Reply], now: float) -> list[bytes]:
        """Process the replies (or errors) to `ask`; return other routers' reports on own bookings."""
        purposes, self._purposes = self._purposes, []
        if len(replies) != len(purposes):
            raise ValueError(f"{len(replies)} replies do not match the commands of the round")
        reports: list[bytes] = []
        problem = next((str(reply) for reply in replies if isinstance(reply, Exception)), "")
        if not (problem and self.problem):
            self.problem_since = now
        self.problem = problem
        self.is_connected = not problem
        self.failures += not self.is_connected
        for (purpose, what), reply in zip(purposes, replies, strict=True):
            if isinstance(reply, Exception):
                continue  # the next round tries again
            if purpose == "enrol":
                self._enrolled_at = self._asked_at
                self.received.enrolled(reply)
            elif purpose == "write":
                self._versions, self._written_at = what, self._asked_at
                self.writes += 1
            elif purpose == "hand on":
                self.relay.confirm(what, reply)
            elif purpose == "clear":
                self.relay.cleared(what)
            elif purpose == "take":
                reports += self.relay.take(reply)
            elif news := self.received.receive(what, reply, now):
                self.relay.heard(what)
                if news.has_ended:
                    self.relay.drop(what)
                self._bookings.picks = max(self._bookings.picks, news.picks)
        self.received.end_round(now, is_answered=self.is_connected)
        return reports

    @property
    def open(self) -> int:
        """The number of this router's bookings that have not ended."""
        return sum(len(book.in_flight) for book in self._bookings.ranks.values())

    def leave(self, now: float) -> list[Command | Call]:
        """Return the Redis commands by which this router says that it ends.

        Requests that still run at engines weigh on their pods until the other routers, and one that
        begins meanwhile, have read the engines' own counts of them: at most for EXPIRE_SECONDS.
        """
        commands: list[Command | Call] = [
            self._write(now, has_ended=True),
            Command(("DEL", self._names.reports(self.router))),
        ]
        if not self.open:
            commands.append(Command(("HDEL", self._names.routers, self.router)))
        return commands

    def hand_on(self, booking: str, report: bytes, now: float) -> bool:
        """Hand a report on to the router that may have the booking, as soon as Redis takes it.

        Return False if there is no such router, or if the report cannot be queued. A router that became
        silent without a word counts as one: it may stand still, or Redis may be away.

        If a caller chose the booking id, any router may have it, so all get the report.
        """
        router = router_of(booking)
        takers = [one for one in self.received.takers(now) if router in {"", one}]
        handed_on = [self.relay.add(one, report, now) for one in takers]
        return bool(handed_on) and all(handed_on)

    def release(self, report: bytes, now: float) -> None:
        """Hand the end of an own booking on to all routers that live: they may have one with its id."""
        for router in self.received.alive(now):
            self.relay.add(router, report, now)

    def _write(self, now: float, *, has_ended: bool = False) -> Command:
        self._number += 1
        ranks = [
            rank_sums(*name, book, now)
            for name, book in self._bookings.ranks.items()
            if book.in_flight
        ]
        arriving = [marked(*one) for one in islice(self._believed.arrivals(), MOST_MARKED)]
        value = msgspec.msgpack.encode(
            RouterSums(self._number, self._bookings.picks, ranks, has_ended, arriving, self._seed)
        )
        expiry = str(round(EXPIRE_SECONDS * 1000))
        return Command(("SET", self._names.load(self.router), value, "PX", expiry))
