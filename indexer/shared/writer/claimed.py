"""The places of a writer's claim, and how many keys each holds."""

from collections.abc import Iterable

from msgspec.structs import replace

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.watch.watched_source import layout_of
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb


class Claimed:
    """One claim as its writer sees it. `claim` has no places yet."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._places: list[SpotOf | None] = []
        self._numbers: dict[tuple[int, Spot], int] = {}
        self._held: dict[int, int] = {}
        """The number of keys of each living place."""
        self.states: dict[int, pb.RankState] = {}
        """The last state of each rank."""

    def claim(self) -> Claim:
        return replace(self._claim, places=list(self._places))

    def slot(self, rank: int, spot: Spot) -> int:
        number = self._numbers.get((rank, spot))
        if number is None:
            number = self._numbers[rank, spot] = len(self._places)
            self._places.append(SpotOf(rank, *spot))
            self._held[number] = 0
        return self._claim.slot(number)

    def slots(self, rank: int) -> list[int]:
        return [self._claim.slot(n) for (one, _), n in self._numbers.items() if one == rank]

    def count(self, rank: int, spot: Spot, more: int) -> None:
        self._held[self._numbers[rank, spot]] += more

    def drop(self, rank: int) -> None:
        """Drop a rank's places: later keys get new places."""
        for key in [key for key in self._numbers if key[0] == rank]:
            number = self._numbers.pop(key)
            del self._held[number]
            self._places[number] = None

    def say(self, states: Iterable[pb.RankState]) -> None:
        for state in states:
            self.states[state.rank] = state

    def blocks(self, rank: int) -> dict[Tier, int]:
        """Return how many distinct blocks of group `Layout.shown` each tier of a rank holds."""
        shown = layout_of(self.states[rank]).shown
        return {
            tier: self._held[number]
            for (one, (tier, group)), number in self._numbers.items()
            if one == rank and group == shown
        }
