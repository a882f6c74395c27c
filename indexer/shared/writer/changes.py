"""The places of a writer's claim, and the changes of the shared index there, by segment and slot."""

from array import array
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import words_of
from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.watch.pod_cache import Contents
from warmpath.indexer.watch.watched_source import layout_of
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

PORTION_KEYS = 8192
"""Keys written in one round trip to all buckets: 64 KiB."""

Where = tuple[int, int]
"""A segment and a slot."""
KeysOf = tuple[Sequence[int], Sequence[int]]
"""Keys that are added in one `Where`, and keys that are gone from it."""
Changes = dict[Where, KeysOf]


class Claimed:
    """One claim as its writer sees it: its places, and how many keys each holds.

    `claim` must have no places yet.
    """

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


def net(claimed: Claimed, deltas: Iterable[pb.Delta]) -> Changes:
    """Apply deltas to `claimed`; return their changes, which give each key its last state."""
    last: dict[int, dict[int, tuple[bool, int]]] = {}
    """By slot and key: whether the key is held after the last delta that names it, and its segment."""
    for delta in deltas:
        rank = delta.state.rank
        for change in delta.changes:
            if change.HasField("emptied"):
                for slot in claimed.slots(rank):
                    last.pop(slot, None)
                claimed.drop(rank)
                continue
            added = change.HasField("added")
            said = change.added if added else change.gone
            spot = Tier(said.tier), said.group
            words = last.setdefault(claimed.slot(rank, spot), {})
            keys = words_of(said.keys)
            claimed.count(rank, spot, len(keys) if added else -len(keys))
            start = 0
            for segment, count in zip(said.segments, said.counts, strict=True):
                for key in keys[start : start + count]:
                    words[key] = added, segment
                start += count
            if start != len(keys):
                raise ValueError("a delta does not say in which segments its keys lie")
        claimed.say([delta.state])
    changes: dict[Where, tuple[list[int], list[int]]] = {}
    for slot, keys_said in last.items():
        for key, (held, segment) in keys_said.items():
            changes.setdefault((segment, slot), ([], []))[0 if held else 1].append(key)
    return dict(changes)


def whole(claimed: Claimed, contents: Iterable[Contents]) -> Iterator[tuple[Where, KeysOf]]:
    """Yield the changes that write all contents; each is counted in `claimed` when its turn comes."""
    for one in contents:
        slot = claimed.slot(one.rank, one.spot)
        claimed.count(one.rank, one.spot, len(one.keys))
        for start in range(0, len(one.keys), PORTION_KEYS):
            end = start + PORTION_KEYS
            by_segment: dict[int, array[int]] = {}
            for key, segment in zip(one.keys[start:end], one.segments[start:end], strict=True):
                by_segment.setdefault(segment, array("Q")).append(key)
            for segment, keys in by_segment.items():
                yield (segment, slot), (keys, ())


def portions(changes: Iterable[tuple[Where, KeysOf]]) -> Iterator[Changes]:
    """Yield changes in portions of about `PORTION_KEYS` keys each; no change is split."""
    portion: Changes = {}
    keys = 0
    for where, (added, gone) in changes:
        if keys >= PORTION_KEYS or where in portion:
            yield portion
            portion, keys = {}, 0
        portion[where] = added, gone
        keys += len(added) + len(gone)
    if portion:
        yield portion
