"""Routers that share bookings through a store in memory."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from tests.conformance.reference_index import ReferenceIndex
from tests.router.consistent import check
from tests.router.load.reports import new_bookings
from tests.router.peers.fake_store import FakeStore
from warmpath.indexer.believed import Believed
from warmpath.indexer.keys.key import pack_words
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.router.load.bookings import Work
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.table import LoadTable
from warmpath.router.peers.exchange import HEARTBEAT_SECONDS, PeerBookings
from warmpath.scorer.candidate import Load

NAMES = KeyNames("test")
NUMBERS = count(1)
PROMPT = pack_words(range(1, 201))


class Router:
    """A router as far as it shares bookings. Its clock has nothing to do with any other."""

    def __init__(self, store: FakeStore, clock_ahead: float = 0.0) -> None:
        self.store = store
        self.clock_ahead = clock_ahead
        self.name = f"{next(NUMBERS):012x}"
        numbers = count()
        self.bookings = new_bookings(
            new_id=lambda: self.caller_says or f"{self.name}-{next(numbers):016x}"
        )
        self.caller_says = ""
        """What the next booking is called; empty: the router names it."""
        self.believed = Believed(ReferenceIndex(), max_blocks=5_000, assumed_seconds=60.0)
        self.peers = PeerBookings(self.name, NAMES, self.bookings, self.believed)
        self.loads = LoadTable(self.bookings, stale_seconds=5.0, others=self.peers.received)
        self.ended: list[str] = []

    @property
    def now(self) -> float:
        return self.store.now + self.clock_ahead

    def book(
        self, prefill: float = 1.0, pod: str = "p", tokens: int = 100, *, name: str = ""
    ) -> str:
        self.caller_says = name
        booking = self.bookings.book(Work("m", pod, 0, tokens, 28, prefill), self.now).id
        self.caller_says = ""
        return booking

    def finish(self, name: str) -> bool:
        """Take a report of an end, of whosever booking; return whether it is known."""
        if self.bookings.end(name, self.now):
            self.ended.append(name)
            return True
        return self.peers.hand_on(name, name.encode(), self.now)

    def round(self, between: Callable[[], object] = lambda: None) -> None:
        """Speak to Redis; call `between` before its replies are read."""
        replies = self.store.run(self.peers.ask(self.now))
        between()
        for report in self.peers.answer(replies, self.now):
            if self.bookings.end(report.decode(), self.now):
                self.ended.append(report.decode())
        for name in self.loads.take_changes(self.now):
            self.loads.renew(*name, self.now)

    def load(self, pod: str = "p") -> Load:
        return self.loads.load(pod, 0, self.now)

    def check(self) -> None:
        check(self.bookings)
        check(self.peers)
        check(self.loads)


def rounds(routers: Iterable[Router], times: int = 3) -> None:
    """Let all routers write, and then read, all bookings."""
    [*all_of_them] = routers
    for _ in range(times):
        for one in all_of_them:
            one.round()


def meet(routers: Sequence[Router]) -> None:
    """Let all learn of all."""
    rounds(routers, 1)
    routers[0].store.now += HEARTBEAT_SECONDS
    rounds(routers)


def seen(router: Router, running: int, waiting: int = 0, ago: float = 0.0) -> None:
    """Let an engine tell a router of its requests, `ago` seconds ago."""
    router.loads.observe("p", 0, Observed(running, waiting, 0.0, router.now - ago))
