"""Bookings shared between routers: what is written, what was read, and how it ages. No sockets.

Each router tells what it has booked in a key of its own, and reads the others'. So no key is written by
two, none is read more often than there are routers, and each lies where its own hash tag puts it. A
report that reaches another router than the one that booked is handed on, through a stream that the
latter reads.

    names.routers      hash: router -> the server's time, ms, at which it was last heard of
    names.load(R)      `Told`, in MessagePack; it expires when R does not tell it anew
    names.reports(R)   stream of serialised ReportRequests for R's bookings, field `report`

No router's clock is compared with another's: ages are told, and count from when they were read.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from indexer.index import BrokenInvariantError
from indexer.shared.command import Call, Command, Reply, script
from indexer.shared.names import Names
from router.book import Bookings
from router.booking_id import is_router, router_of
from router.others_book import NOBODY, Count, OthersBook, RankTold, rank_told, together

EXPIRE_SECONDS = 3.0
"""How long what a router told counts."""
HEARTBEAT_SECONDS = 1.0
"""Pause after which it tells again though nothing changed."""
FORGET_SECONDS = 60.0
"""How long a router that is gone is listed, and how long reports wait for one that may be."""

MOST_PEERS = 256
MOST_BYTES = 4 << 20
"""Of what a router tells; 100 bytes a rank on which anything is booked are common."""
MOST_REPORTS = 10_000
"""Reports that wait to be handed on, here in all and in Redis for each router."""
MOST_REPORT_BYTES = 4096
BATCH = 512
"""Reports of one call, and of one read."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a router tells."""

    number: Count
    """Grows: the same value again is no sign of life."""
    picks: Count
    """The number of its last pick (`Bookings.overtake`)."""
    ranks: list[RankTold]
    """Those on which anything is booked."""


@dataclass(slots=True)
class _Peer:
    """What another router told last."""

    value: bytes
    heard_at: float
    ranks: dict[tuple[str, int], RankTold]


@dataclass(slots=True)
class Stats:
    """Counted since the start."""

    tells: int = 0
    """Times that it was told what is booked here."""
    failures: int = 0
    """Rounds in which Redis did not answer all."""
    malformed: int = 0
    """Values that another router told and that cannot be."""
    handed_on: int = 0
    """Reports of others' bookings that were handed on."""
    received: int = 0
    """Reports of own bookings that were handed on to here."""
    dropped: int = 0
    """Reports whose router went before they could be handed on."""


@dataclass(slots=True)
class _Asked:
    """A round under way: what the commands were for."""

    at: float
    purposes: list[tuple[Literal["enrol", "tell", "read", "hand on", "clear", "take"], Any]] = (
        field(default_factory=list)
    )


class PeerBookings:
    """What the other routers have booked, as one router knows it. `now` is its clock, seconds.

    In turns: `ask`, then `answer` with the replies to it.
    """

    def __init__(self, router: str, names: Names, bookings: Bookings) -> None:
        """Be one router; its name (`router.booking_id`) is nobody else's."""
        self.router = router
        self.stats = Stats()
        self.is_connected = False
        """Whether Redis answered the last round."""
        self._names = names
        self._bookings = bookings
        self._asked: _Asked | None = None
        self._number = 0
        self._told: dict[tuple[str, int], tuple[int, int]] = {}
        """Versions of what was told last."""
        self._told_at = -math.inf
        self._enrolled_at = -math.inf
        self._listed: set[str] = set()
        """Other routers, as Redis lists them."""
        self._peers: dict[str, _Peer] = {}
        self._together: dict[tuple[str, int], OthersBook] = {}
        """Sums of what counts from `_from` until `_until`, as they were asked for."""
        self._is_changed = False
        """Whether they are to be made anew."""
        self._from = self._until = math.inf
        self._outgoing: dict[str, deque[bytes]] = {}
        self._waiting_reports = 0
        self._taken: dict[bytes, None] = {}
        """Ids of entries of the own stream that were handled and may be there yet."""

    # One round

    def ask(self, now: float) -> list[Command | Call]:
        """Return what to ask Redis in this round."""
        now = self._bookings.expire(now)
        asked = self._asked = _Asked(now)
        says: list[Command | Call] = []
        if not 0 <= now - self._enrolled_at < HEARTBEAT_SECONDS:
            asked.purposes.append(("enrol", None))
            says.append(self._enrol())
        versions = {
            name: (book.version, book.last_pick)
            for name, book in self._bookings.ranks().items()
            if book.in_flight
        }
        if versions != self._told or not 0 <= now - self._told_at < HEARTBEAT_SECONDS:
            asked.purposes.append(("tell", versions))
            says.append(self._tell(now))
        for router, waiting in self._outgoing.items():
            batch = [waiting[at] for at in range(min(len(waiting), BATCH))]
            asked.purposes.append(("hand on", (router, len(batch))))
            times = MOST_REPORTS, round(FORGET_SECONDS * 1000)
            says.append(Call(script("hand_on"), (self._names.reports(router),), (*times, *batch)))
        stream = self._names.reports(self.router)
        if self._taken:
            ids = [*self._taken]
            asked.purposes.append(("clear", ids))
            says.append(Command(("XDEL", stream, *ids)))
        asked.purposes.append(("take", None))
        says.append(Command(("XRANGE", stream, "-", "+", "COUNT", str(BATCH))))
        listed = sorted(self._listed - self._peers.keys())
        for router in [*self._peers, *listed][:MOST_PEERS]:
            asked.purposes.append(("read", router))
            says.append(Command(("GET", self._names.load(router))))
        return says

    def answer(self, replies: Sequence[Reply], now: float) -> list[bytes]:
        """Take the replies, or errors, to what was asked; return reports for own bookings."""
        asked, self._asked = self._asked, None
        if asked is None or len(replies) != len(asked.purposes):
            raise ValueError(f"{len(replies)} replies to what was not asked")
        reports: list[bytes] = []
        self.is_connected = not any(isinstance(reply, Exception) for reply in replies)
        self.stats.failures += not self.is_connected
        for (purpose, what), reply in zip(asked.purposes, replies, strict=True):
            if isinstance(reply, Exception):
                continue  # It is asked for again in the next round.
            if purpose == "enrol":
                self._enrolled_at = asked.at
                self._list(reply)
            elif purpose == "tell":
                self._told, self._told_at = what, asked.at
                self.stats.tells += 1
            elif purpose == "hand on":
                self._handed_on(*what)
            elif purpose == "clear":
                for name in what:
                    self._taken.pop(name, None)
            elif purpose == "take":
                reports += self._take(reply)
            else:
                self._read(what, reply, now)
        if self._is_changed:
            self._refresh(now)
        return reports

    def leave(self) -> list[Command | Call]:
        """Return what to ask Redis at the end, so that what was booked here counts no more."""
        return [
            Command(("DEL", self._names.load(self.router))),
            Command(("DEL", self._names.reports(self.router))),
            Command(("HDEL", self._names.routers, self.router)),
        ]

    # What others have booked

    def anywhere(self, now: float) -> bool:
        """Whether any router has told what it booked, and lately."""
        self._stay_fresh(now)
        return bool(self._peers)

    def on(self, pod: str, rank: int, now: float) -> OthersBook:
        """Return what others have booked on a rank; the same object until anything is told anew."""
        self._stay_fresh(now)
        if not self._peers:
            return NOBODY
        name = (pod, rank)
        found = self._together.get(name)
        if found is None:
            found = self._together[name] = self._sums(name)
        return found

    def peers(self, now: float) -> int:
        """Return how many other routers there are."""
        self._stay_fresh(now)
        return len(self._peers)

    def oldest(self, now: float) -> float:
        """Return the age of what counts and was told longest ago, seconds; 0 where nothing counts."""
        self._stay_fresh(now)
        return max((now - peer.heard_at for peer in self._peers.values()), default=0.0)

    # Reports

    def hand_on(self, booking: str, report: bytes, now: float) -> bool:
        """Hand a report on to the router that has the booking; False where none that lives has."""
        router = router_of(booking)
        peer = self._peers.get(router)
        if peer is None or not _is_fresh(peer, now):
            return False
        if self._waiting_reports >= MOST_REPORTS or len(report) > MOST_REPORT_BYTES:
            return False
        self._outgoing.setdefault(router, deque()).append(report)
        self._waiting_reports += 1
        return True

    def check(self) -> None:
        """Raise BrokenInvariantError where sums are not those of what was told, or too much is kept."""
        for name, kept in self._together.items():
            if kept != self._sums(name):
                raise BrokenInvariantError(f"the sums of {name} are out of date")
            if min(kept.nanoseconds, kept.waiting, kept.in_flight, *kept.settled) < 0:
                raise BrokenInvariantError(f"less than nothing is booked on {name}")
        if self._waiting_reports != sum(map(len, self._outgoing.values())):
            raise BrokenInvariantError("the reports that wait do not add up")
        if any(not waiting for waiting in self._outgoing.values()):
            raise BrokenInvariantError("a router is kept for whom no report waits")
        if self.router in self._peers or len(self._peers) > MOST_PEERS:
            raise BrokenInvariantError("a router counts itself, or too many")
        if len(self._taken) > 2 * BATCH:
            raise BrokenInvariantError(f"{len(self._taken)} reports are kept for handled")

    def _enrol(self) -> Call:
        times = round(EXPIRE_SECONDS * 1000), round(FORGET_SECONDS * 1000)
        return Call(script("enrol"), (self._names.routers,), (self.router, *times))

    def _tell(self, now: float) -> Command:
        self._number += 1
        ranks = [
            rank_told(*name, book, now)
            for name, book in self._bookings.ranks().items()
            if book.in_flight
        ]
        value = msgspec.msgpack.encode(Told(self._number, self._bookings.picks, ranks))
        expiry = str(round(EXPIRE_SECONDS * 1000))
        return Command(("SET", self._names.load(self.router), value, "PX", expiry))

    def _list(self, reply: Sequence[bytes]) -> None:
        names = {name.decode("ascii", "replace") for name in reply}
        self._listed = {name for name in names if is_router(name)} - {self.router}

    def _read(self, router: str, value: bytes | None, now: float) -> None:
        peer = self._peers.get(router)
        if value is None:
            self._go(router)
        elif peer is None or peer.value != value:
            try:
                told = _decode(value)
            except ValueError:
                self.stats.malformed += 1
                self._go(router)
                return
            self._bookings.overtake(told.picks)
            ranks = {(one.pod, one.rank): one for one in told.ranks}
            self._peers[router] = _Peer(value, now, ranks)
            self._is_changed = True

    def _go(self, router: str) -> None:
        if self._peers.pop(router, None) is not None:
            self._is_changed = True
        lost = self._outgoing.pop(router, ())
        self._waiting_reports -= len(lost)
        self.stats.dropped += len(lost)

    def _handed_on(self, router: str, count: int) -> None:
        waiting = self._outgoing.get(router)
        if waiting is None:
            return
        for _ in range(count):
            waiting.popleft()
        self._waiting_reports -= count
        self.stats.handed_on += count
        if not waiting:
            del self._outgoing[router]

    def _take(self, reply: Sequence[Sequence[Any]]) -> list[bytes]:
        """Return the reports among entries that were not handled before."""
        reports = []
        for name, fields in reply:
            if name not in self._taken:
                self._taken[name] = None
                if len(fields) == 2 and fields[0] == b"report":
                    reports.append(fields[1])
        self.stats.received += len(reports)
        return reports

    def _sums(self, name: tuple[str, int]) -> OthersBook:
        return together(
            (told, peer.heard_at) for peer in self._peers.values() if (told := peer.ranks.get(name))
        )

    def _stay_fresh(self, now: float) -> None:
        if self._peers and not self._from < now < self._until:
            self._refresh(now)

    def _refresh(self, now: float) -> None:
        """Count what is fresh now."""
        for router in [name for name, peer in self._peers.items() if not _is_fresh(peer, now)]:
            self._go(router)
        self._together.clear()
        self._is_changed = False
        heard = [peer.heard_at for peer in self._peers.values()]
        self._from = max(heard, default=now) - EXPIRE_SECONDS
        self._until = min(heard, default=math.inf) + EXPIRE_SECONDS


def _is_fresh(peer: _Peer, now: float) -> bool:
    return abs(now - peer.heard_at) < EXPIRE_SECONDS


def _decode(value: bytes) -> Told:
    """Return what was told. Raises ValueError."""
    if len(value) > MOST_BYTES:
        raise ValueError(f"{len(value)} bytes")
    told = msgspec.msgpack.decode(value, type=Told)
    if len({(one.pod, one.rank) for one in told.ranks}) != len(told.ranks):
        raise ValueError("a rank is told of twice")
    for one in told.ranks:
        if not one.is_possible:
            raise ValueError(f"of rank {one.rank} of {one.pod!r} figures that cannot be")
    return told
