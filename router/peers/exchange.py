"""Bookings shared between routers: what is written and read in a round. No sockets.

Each router tells what it has booked in a key of its own, and reads the others' (`received.py`). So
no key is written by two, none is read more often than there are routers, and each lies where its own
hash tag puts it. A report that reaches another router than the one that booked is handed on, through a
stream that the latter reads (`report_relay.py`).

    names.routers      hash: router -> the server's time, ms, at which it was last heard of
    names.load(R)      `Told`, in MessagePack; it expires when R does not tell it anew
    names.reports(R)   stream of serialised ReportRequests for R's bookings, field `report`

No router's clock is compared with another's: ages are told, and count from when they were read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from indexer.shared.layout.names import Names
from indexer.shared.redis.command import Call, Command, Reply, script
from router.load.bookings import Bookings
from router.load.other_routers import rank_told
from router.peers.booking_id import router_of
from router.peers.received import EXPIRE_SECONDS, Told, ToldBookings
from router.peers.report_relay import BATCH, MOST_REPORTS, ReportRelay

HEARTBEAT_SECONDS = 1.0
"""Pause after which it tells again though nothing changed."""
FORGET_SECONDS = 60.0
"""How long a router that is gone is listed, and how long reports wait for one that may be."""


@dataclass(slots=True)
class _Asked:
    """A round under way: what the commands were for."""

    at: float
    purposes: list[tuple[Literal["enrol", "tell", "read", "hand on", "clear", "take"], Any]] = (
        field(default_factory=list)
    )


class PeerBookings:
    """One router's part in sharing bookings. `now` is its clock, seconds.

    In turns: `ask`, then `answer` with the replies to it.
    """

    def __init__(self, router: str, names: Names, bookings: Bookings) -> None:
        """Be one router; its name (`router.peers.booking_id`) is nobody else's."""
        self.router = router
        self.is_connected = False
        """Whether Redis answered the last round."""
        self.tells = 0
        """Times, since the start, that it was told what is booked here."""
        self.failures = 0
        """Rounds in which Redis did not answer all."""
        self.relay = ReportRelay()
        self.told = ToldBookings(router, gone=self.relay.drop)
        self._names = names
        self._bookings = bookings
        self._asked: _Asked | None = None
        self._number = 0
        self._versions: dict[tuple[str, int], tuple[int, int]] = {}
        """Of what Redis was told last."""
        self._told_at = -math.inf
        self._enrolled_at = -math.inf

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
        if versions != self._versions or not 0 <= now - self._told_at < HEARTBEAT_SECONDS:
            asked.purposes.append(("tell", versions))
            says.append(self._tell(now))
        for router, batch in self.relay.batches():
            asked.purposes.append(("hand on", (router, len(batch))))
            times = MOST_REPORTS, round(FORGET_SECONDS * 1000)
            says.append(Call(script("hand_on"), (self._names.reports(router),), (*times, *batch)))
        stream = self._names.reports(self.router)
        if ids := self.relay.taken():
            asked.purposes.append(("clear", ids))
            says.append(Command(("XDEL", stream, *ids)))
        asked.purposes.append(("take", None))
        says.append(Command(("XRANGE", stream, "-", "+", "COUNT", str(BATCH))))
        for router in self.told.whom():
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
        self.failures += not self.is_connected
        for (purpose, what), reply in zip(asked.purposes, replies, strict=True):
            if isinstance(reply, Exception):
                continue  # It is asked for again in the next round.
            if purpose == "enrol":
                self._enrolled_at = asked.at
                self.told.enrolled(reply)
            elif purpose == "tell":
                self._versions, self._told_at = what, asked.at
                self.tells += 1
            elif purpose == "hand on":
                self.relay.confirm(*what)
            elif purpose == "clear":
                self.relay.cleared(what)
            elif purpose == "take":
                reports += self.relay.take(reply)
            elif news := self.told.hear(what, reply, now):
                self._bookings.overtake(news.picks)
        self.told.heard(now)
        return reports

    def leave(self) -> list[Command | Call]:
        """Return what to ask Redis at the end, so that what was booked here counts no more."""
        return [
            Command(("DEL", self._names.load(self.router))),
            Command(("DEL", self._names.reports(self.router))),
            Command(("HDEL", self._names.routers, self.router)),
        ]

    def hand_on(self, booking: str, report: bytes, now: float) -> bool:
        """Hand a report on to the router that has the booking; False where none that lives may have it.

        Of a name that a caller chose any may have it: all are told.
        """
        router = router_of(booking)
        if not router:
            handed_on = [self.relay.add(one, report) for one in self.told.alive(now)]
            return any(handed_on)
        return self.told.is_alive(router, now) and self.relay.add(router, report)

    def check(self) -> None:
        """Raise BrokenInvariantError where a part of it contradicts itself."""
        self.told.check()
        self.relay.check()

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
