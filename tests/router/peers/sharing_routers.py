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
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.load.rank_bookings import Booking, Work
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
        self.bookings = new_bookings()
        self._named: dict[str, str] = {}
        """The bookings' own ids by the ids that callers know."""
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
        """Book, and return the booking id that a caller knows: `name`, if it chose one."""
        name = name or f"{self.name}-{len(self._named):016x}"
        work = Work("m", pod, 0, tokens, 28, prefill)
        self._named[name] = self.bookings.book(work, self.now).id
        return name

    def get(self, name: str) -> Booking | None:
        return self.bookings.get(self._named.get(name, ""))

    def first_token(self, name: str) -> bool:
        return self.bookings.first_token(self._named.get(name, ""), self.now)

    def _end(self, name: str) -> bool:
        """Take a report of an end; return whether it is of an own booking."""
        is_own = self.bookings.end(self._named.get(name, ""), self.now)
        self.ended += [name] * is_own
        return is_own

    def finish(self, name: str) -> bool:
        """Take a report of an end, of whosever booking; return whether it is known."""
        return self._end(name) or self.peers.hand_on(name, name.encode(), self.now)

    def round(self, between: Callable[[], object] = lambda: None) -> None:
        """Speak to Redis; call `between` before its replies are read."""
        replies = self.store.run(self.peers.ask(self.now))
        between()
        for report in self.peers.answer(replies, self.now):
            self._end(report.decode())
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
