"""What the other routers told of their bookings, for as long as it counts, and the sums of it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from indexer.invariant import BrokenInvariantError
from router.load.other_routers import NOBODY, Count, OthersBook, RankTold, together
from router.peers.booking_id import is_router

EXPIRE_SECONDS = 3.0
"""How long what a router told counts."""
MOST_PEERS = 256
MOST_BYTES = 4 << 20
"""Of what a router tells; 100 bytes a rank on which anything is booked are common."""


MOST_PICKS = 1 << 48
"""A pick's number that any fleet comes to: a million a second for nine years."""


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


class ToldBookings:
    """What others have booked, as one router was told. `now` is its clock, seconds.

    `gone` is told of each router of which nothing is heard any more.
    """

    def __init__(self, router: str, gone: Callable[[str], None]) -> None:
        self.malformed = 0
        """Values, since the start, that another router told and that cannot be."""
        self._router = router
        self._gone = gone
        self._listed: set[str] = set()
        """Other routers, as Redis lists them."""
        self._peers: dict[str, _Peer] = {}
        self._together: dict[tuple[str, int], OthersBook] = {}
        """Sums of what counts from `_from` until `_until`, as they were asked for."""
        self._is_changed = False
        """Whether they are to be made anew."""
        self._from = self._until = math.inf
        self._version = 0
        """Grows whenever sums may be others than before."""

    # What is heard

    def enrolled(self, names: Iterable[bytes]) -> None:
        """Take note of who there is, oneself among them, as Redis lists it."""
        read = {name.decode("ascii", "replace") for name in names}
        self._listed = {name for name in read if is_router(name)} - {self._router}

    def whom(self) -> list[str]:
        """Return the routers to be heard next, those first that were heard before."""
        return [*self._peers, *sorted(self._listed - self._peers.keys())][:MOST_PEERS]

    def hear(self, router: str, value: bytes | None, now: float) -> Told | None:
        """Take what a router tells, None where that is nothing; return it where it is news."""
        peer = self._peers.get(router)
        if value is None:
            self._go(router)
        elif peer is None or peer.value != value:
            try:
                told = _decode(value)
            except ValueError:
                self.malformed += 1
                self._go(router)
                return None
            ranks = {(one.pod, one.rank): one for one in told.ranks}
            self._peers[router] = _Peer(value, now, ranks)
            self._change()
            return told
        return None

    def heard(self, now: float) -> None:
        """Count anew where anything is news."""
        if self._is_changed:
            self._refresh(now)

    # What counts

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

    def version(self, now: float) -> int:
        """Return a number that grows whenever anything is told anew or counts no more."""
        self._stay_fresh(now)
        return self._version

    def where(self) -> set[tuple[str, int]]:
        """Return the ranks that are told of by any router that counted last."""
        return {name for peer in self._peers.values() for name in peer.ranks}

    def routers(self, now: float) -> int:
        """Return how many other routers there are."""
        self._stay_fresh(now)
        return len(self._peers)

    def oldest(self, now: float) -> float:
        """Return the age of what counts and was told longest ago, seconds; 0 where nothing counts."""
        self._stay_fresh(now)
        return max((now - peer.heard_at for peer in self._peers.values()), default=0.0)

    def is_alive(self, router: str, now: float) -> bool:
        """Whether another router was heard lately."""
        peer = self._peers.get(router)
        return peer is not None and _is_fresh(peer, now)

    def alive(self, now: float) -> list[str]:
        """Return the other routers that were heard lately."""
        return [router for router, peer in self._peers.items() if _is_fresh(peer, now)]

    def check(self) -> None:
        """Raise BrokenInvariantError where sums are not those of what was told, or too much is kept."""
        for name, kept in self._together.items():
            if kept != self._sums(name):
                raise BrokenInvariantError(f"the sums of {name} are out of date")
            if min(kept.nanoseconds, kept.waiting, kept.in_flight, *kept.settled) < 0:
                raise BrokenInvariantError(f"less than nothing is booked on {name}")
        if self._router in self._peers or len(self._peers) > MOST_PEERS:
            raise BrokenInvariantError("a router counts itself, or too many")

    def _go(self, router: str) -> None:
        if self._peers.pop(router, None) is not None:
            self._change()
        self._gone(router)

    def _change(self) -> None:
        self._is_changed = True
        self._version += 1

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
        self._version += 1
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
    if told.picks > MOST_PICKS:
        # Who overtook that would tell such numbers too.
        raise ValueError(f"pick {told.picks}")
    if len({(one.pod, one.rank) for one in told.ranks}) != len(told.ranks):
        raise ValueError("a rank is told of twice")
    for one in told.ranks:
        if not one.is_possible:
            raise ValueError(f"of rank {one.rank} of {one.pod!r} figures that cannot be")
    return told
