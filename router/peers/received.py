"""Keeps the bookings that other routers have written, while they are fresh, and sums them by rank."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import msgspec

from warmpath.indexer.index.slot import RankName
from warmpath.process.bytes import UNREADABLE
from warmpath.router.load.other_routers import NOBODY, Count, OthersBook, RankSums, sum_of
from warmpath.router.peers.booking_id import is_router
from warmpath.router.peers.marks import MarkedPrompt, Marks

EXPIRE_SECONDS = 3.0
"""Seconds for which a router's written bookings count."""
FORGET_SECONDS = 60.0
"""Seconds for which a router that became silent without a word may still come back for its reports."""
MOST_PEERS = 256
MOST_BYTES = 4 << 20
"""Largest value of one router; 100 bytes per rank with bookings are common."""

MOST_MARKED = 256
"""Most prompts with marks in one router's value: the latest ones."""
MOST_PICKS = 1 << 48
"""Largest credible number of a pick: a million a second for nine years."""


class RouterSums(msgspec.Struct, frozen=True, array_like=True):
    """The value that a router writes: the sums of its bookings on each rank."""

    number: Count
    """Grows with each write, so that an unchanged value shows that the router is silent."""
    picks: Count
    """The highest number of a pick that it knows (`Bookings.picks`)."""
    ranks: list[RankSums]
    has_ended: bool = False
    """Whether the router has ended: it takes no reports, and its bookings on a rank count until the
    engine's own count has them (`ReceivedBookings.observed`), at most until the value is too old."""
    arriving: list[MarkedPrompt] = []
    """Prompts on their way to ranks; routers before 2026-12 write none."""
    seed: str = ""
    """The fingerprint of its hash seed, in which the marks of `arriving` are; empty: not said."""


@dataclass(slots=True)
class _Peer:
    value: bytes
    received_at: float
    sums: RouterSums
    ranks: dict[RankName, RankSums]
    """The sums whose requests the rank's engine does not count yet."""


class ReceivedBookings:
    """The bookings of other routers, and marks of their prompts on the way.

    `now` is a time of this router's clock, in seconds.

    `gone` is called with the name of each router that has been silent for too long. `seed` is the
    fingerprint of this router's hash seed.
    """

    def __init__(self, router: str, seed: str, gone: Callable[[str], None]) -> None:
        self.malformed = 0
        """Number of invalid values of other routers since the start."""
        self.marks = Marks()
        """The marks of other routers' prompts on their way."""
        self._router = router
        self._seed = seed
        self._gone = gone
        self._listed: set[str] = set()
        self._peers: dict[str, _Peer] = {}
        self._silent: dict[str, float] = {}
        """Routers whose value is missing, invalid or too old, and that did not say that they ended: with
        the time since which Redis answers and they are silent."""
        self._summed: dict[RankName, OthersBook] = {}
        """Cached sums by rank."""
        self._is_changed = False
        """Whether values have changed since the sums were made."""
        self._until = math.inf
        """When the first value may be too old."""
        self._version = 0
        """Grows whenever sums may have changed."""

    def enrolled(self, names: Iterable[bytes]) -> None:
        """Set the routers that Redis lists, this one among them."""
        read = {name.decode("ascii", "replace") for name in names}
        self._listed = {name for name in read if is_router(name)} - {self._router}

    def to_read(self) -> list[str]:
        """Return the routers whose values to read next, those with a value first."""
        return [*self._peers, *sorted(self._listed - self._peers.keys())][:MOST_PEERS]

    def receive(self, router: str, value: bytes | None, now: float) -> RouterSums | None:
        """Take a router's value (None: it has none); return it decoded if it is new and valid."""
        peer = self._peers.get(router)
        if value is None:
            self._go(router, now)
        elif peer is None or peer.value != value:
            try:
                sums = _decode(value)
            except (ValueError, *UNREADABLE):
                self.malformed += 1
                self._go(router, now)
                return None
            ranks = {RankName(one.pod, one.rank): one for one in sums.ranks}
            self._peers[router] = _Peer(value, now, sums, ranks)
            self._until = min(self._until, now + EXPIRE_SECONDS)
            self._silent.pop(router, None)
            self._is_changed = True
            return sums
        return None

    def end_round(self, now: float, *, is_answered: bool) -> None:
        """Refresh the sums if any value has changed, or is no longer fresh.

        Where Redis did not answer the round, nobody knows who is silent.
        """
        self._stay_fresh(now)
        if not is_answered:
            self._silent = dict.fromkeys(self._silent, now)
        too_long = [one for one, at in self._silent.items() if now - at >= FORGET_SECONDS]
        for router in [*too_long, *list(self._silent)[MOST_PEERS:]]:
            if self._silent.pop(router, None) is not None:
                self._gone(router)

    def on(self, pod: str, rank: int, now: float) -> OthersBook:
        self._stay_fresh(now)
        if not self._peers:
            return NOBODY
        name = RankName(pod, rank)
        found = self._summed.get(name)
        if found is None:
            peers = [peer for peer in self._peers.values() if name in peer.ranks]
            sums = [(peer.ranks[name], peer.received_at) for peer in peers]
            found = self._summed[name] = sum_of(sums)
        return found

    def observed(self, pod: str, rank: int, at: float) -> None:
        name = RankName(pod, rank)
        for peer in self._peers.values():
            if (
                peer.sums.has_ended
                and peer.received_at < at
                and peer.ranks.pop(name, None) is not None
            ):
                self._summed.pop(name, None)
                self._version += 1

    def version(self, now: float) -> int:
        self._stay_fresh(now)
        return self._version

    def where(self) -> set[RankName]:
        return {name for peer in self._peers.values() for name in peer.ranks}

    @property
    def seed_problem(self) -> str:
        """The words that routers had other hash seeds in the last round; empty: none is known to."""
        count = sum(peer.sums.seed not in ("", self._seed) for peer in self._peers.values())
        if not count:
            return ""
        return (
            f"index.hash-seed is another at {count} of the routers that share bookings: this one does "
            "not see which prompts they have on their way, so that more pods compute the same beginnings"
        )

    def oldest(self, now: float) -> float:
        """Return the age of the oldest fresh value, in seconds; 0 without any."""
        self._stay_fresh(now)
        return max((now - peer.received_at for peer in self._peers.values()), default=0.0)

    def alive(self, now: float) -> list[str]:
        """Return the routers whose value is fresh, and that did not say that they end."""
        self._stay_fresh(now)
        return [router for router, peer in self._peers.items() if not peer.sums.has_ended]

    def takers(self, now: float) -> list[str]:
        """Return the routers that may take reports: those that are alive, or silent for not too long."""
        return [*self.alive(now), *self._silent]

    def _go(self, router: str, now: float) -> None:
        peer = self._peers.pop(router, None)
        if peer is not None:
            self._is_changed = True
            if not peer.sums.has_ended:
                self._silent[router] = now

    def _stay_fresh(self, now: float) -> None:
        """Drop values that are too old; refresh what was made of the values if any has changed."""
        if now >= self._until:
            ages = {router: now - peer.received_at for router, peer in self._peers.items()}
            for router in [one for one, age in ages.items() if age >= EXPIRE_SECONDS]:
                self._go(router, now)
            times = (peer.received_at for peer in self._peers.values())
            self._until = min(times, default=math.inf) + EXPIRE_SECONDS
        if self._is_changed:
            self._is_changed = False
            self._version += 1
            self._summed.clear()
            self.marks.replace(
                chain.from_iterable(peer.sums.arriving for peer in self._peers.values())
            )


def _decode(value: bytes) -> RouterSums:
    """Return a decoded value. Raises ValueError if it is invalid, and UNREADABLE."""
    if len(value) > MOST_BYTES:
        raise ValueError(f"the value has {len(value)} bytes, more than {MOST_BYTES}")
    sums = msgspec.msgpack.decode(value, type=RouterSums)
    if sums.picks > MOST_PICKS:
        # Routers continue counting after the highest number, so it would spread to all.
        raise ValueError(f"the highest pick is number {sums.picks}, above {MOST_PICKS}")
    if len({(one.pod, one.rank) for one in sums.ranks}) != len(sums.ranks):
        raise ValueError("a rank is listed twice")
    for one in sums.ranks:
        if not one.is_possible:
            raise ValueError(f"rank {one.rank} of {one.pod!r} has impossible figures")
    if len(sums.arriving) > MOST_MARKED or not all(one.is_possible for one in sums.arriving):
        raise ValueError("the marks of prompts are not possible")
    return sums
