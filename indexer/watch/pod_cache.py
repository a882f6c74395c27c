"""A pod's cache as its engine's events describe it, for a publisher: its changes become deltas.

Sans-I/O: the owner of the sockets feeds the ranks' ingestion. `collect` turns the changes since the last
call into journal entries, `snapshot` returns the whole state.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import ORPHAN_BYTES, Clock, RankIngest
from warmpath.indexer.keys.key import WORD_BYTES, pack_words, words_of
from warmpath.indexer.keys.segment import Segments
from warmpath.indexer.resolve.change import Added, Change, Emptied, Spot
from warmpath.indexer.resolve.names import Names
from warmpath.indexer.resolve.rank_state import PureState
from warmpath.indexer.resolve.resolver import Resolver
from warmpath.indexer.stream.machine import PENDING_BYTES
from warmpath.indexer.trust import Level, Trust
from warmpath.indexer.watch.watched_source import Pulse
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

DELTA_BYTES = 64
"""An estimate of a delta's bytes in memory beside its serialized ones."""


class Journal:
    """Holds the last deltas, of at most `max_bytes`; `epoch` names this life of the publisher.

    They are kept serialized, as messages would take seven times as many bytes.
    """

    def __init__(self, epoch: str, max_bytes: int) -> None:
        self.epoch = epoch
        self.sequence = 0
        """The last delta's number; 0 before the first."""
        self.bytes = 0
        self._max_bytes = max_bytes
        self._deltas: deque[bytes] = deque()

    def add(self, state: pb.RankState, changes: list[pb.Change]) -> None:
        """Add a numbered delta, letting the oldest go where there is no room."""
        self.sequence += 1
        delta = pb.Delta(sequence=self.sequence, state=state, changes=changes)
        self._deltas.append(delta.SerializeToString())
        self.bytes += DELTA_BYTES + len(self._deltas[-1])
        while self.bytes > self._max_bytes:
            self.bytes -= DELTA_BYTES + len(self._deltas.popleft())

    def reaches(self, epoch: str, sequence: int) -> bool:
        """Whether the journal has every delta after a position; never for another `epoch`."""
        first = self.sequence - len(self._deltas) + 1
        return epoch == self.epoch and first - 1 <= sequence <= self.sequence

    def after(self, sequence: int, most: int) -> list[pb.Delta] | None:
        """Return up to `most` deltas after a position; None where some are gone already."""
        if not self.reaches(self.epoch, sequence):
            return None
        missing = self.sequence - sequence
        start = len(self._deltas) - missing
        found = (self._deltas[start + n] for n in range(min(missing, most)))
        return [pb.Delta.FromString(delta) for delta in found]


PART_KEYS = 16_384
"""Keys in one part of a snapshot: 128 KiB."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The keys that a rank holds in one tier and group (`spot`), and the segment of each."""

    rank: int
    spot: Spot
    keys: "array[int]"
    segments: "array[int]"


class Pending:
    """The sink of one rank: changes of its `names` that are not in the journal yet."""

    def __init__(self, names: Names) -> None:
        self.changes: list[Change] = []
        self._names = names

    def apply(self, change: Change) -> None:
        self.changes.append(change)

    def empty(self) -> None:
        """Replace all changes by one: the rank holds nothing."""
        self.changes = [Emptied()]

    def blocks(self, layout: Layout) -> Mapping[Tier, int]:
        held = self._names.places().items()
        return {tier: len(keys) for (tier, group), keys in held if group == layout.shown}


@dataclass(slots=True)
class _Followed:
    """One rank, its names, and its changes."""

    rank: RankIngest
    resolver: Resolver
    sink: Pending
    collected: tuple[Trust, Layout, int] | None = None
    """What the journal says of the rank beside its changes; None before it says anything."""


class PodCache:
    """One pod: its ranks, and the journal of their changes."""

    def __init__(self, pod: str, journal: Journal) -> None:
        self.pod = pod
        self.journal = journal
        self.pulse = Pulse()
        """Beats with the loop that follows the ranks and collects their changes."""
        self.ranks: list[RankIngest] = []
        self._followed: list[_Followed] = []

    def add(
        self,
        source: RankSource,
        *,
        hash_seed: str = "",
        pending_bytes: int = PENDING_BYTES,
        stale_after: float,
        segmented: bool = False,
        clock: Clock,
    ) -> RankIngest:
        """Begin to follow a rank; ranks are added in order from 0.

        With `segmented`, the journal names the segment of each key in the shared index. The other
        arguments are as in `RankIngest`.
        """
        segments = Segments() if segmented else None
        resolver = Resolver(source.model, hash_seed, orphan_bytes=ORPHAN_BYTES, segments=segments)
        sink = Pending(resolver.names)
        rank = RankIngest(
            source,
            PureState(resolver, sink),
            pending_bytes=pending_bytes,
            stale_after=stale_after,
            clock=clock,
        )
        self.ranks.append(rank)
        self._followed.append(_Followed(rank, resolver, sink))
        return rank

    def collect(self) -> bool:
        """Put the changes since the last call into the journal; return whether there were any."""
        before = self.journal.sequence
        for one in self._followed:
            # A new sequence of the engine without any change is not worth a delta.
            rank, changes = one.rank, one.sink.changes
            present = rank.trust, rank.layout, rank.capacity
            if changes or present != one.collected:
                one.sink.changes, one.collected = [], present
                self.journal.add(_state(rank), [_message(change) for change in changes])
        return self.journal.sequence > before

    def moment(self, now: float) -> float:
        """Return the last moment up to which the journal shows the engine, if its ranks are exact.

        `now` and the result are times of the ranks' clock; minus infinity where it is not known yet.
        """
        moments = [self.pulse.known_until]
        for rank in self.ranks:
            if rank.trust.level is Level.EXACT:
                moments.append(rank.known_until(now))
            elif rank.is_connected:
                # It may be exact again with its next batch, and is that far behind then, at most.
                moments.append(max(rank.known_until(now), now - rank.lag.most_seconds))
        return min(moments)

    def snapshot(self) -> Iterator[pb.WatchResponse]:
        """Yield the whole state as messages, to be sent before any later delta.

        The state is copied when the first message is asked for; later changes do not show in the others.
        """
        self.collect()
        end = pb.SnapshotEnd(sequence=self.journal.sequence, ranks=self.states())
        packed = [
            (one.rank.number, spot, pack_words(keys), links)
            for one in self._followed
            for spot, (keys, links) in one.resolver.names.chains().items()
        ]
        for number, (tier, group), keys, links in packed:
            first = 0
            for start in range(0, len(keys) // WORD_BYTES, PART_KEYS):
                stop = start + PART_KEYS
                last = bisect_left(links, stop, first, key=itemgetter(0))
                part = pb.SnapshotPart(
                    rank=number,
                    tier=tier,
                    group=group,
                    keys=keys[start * WORD_BYTES : stop * WORD_BYTES],
                    starts=[position - start for position, _ in links[first:last]],
                    above=[above for _, above in links[first:last]],
                )
                if start and (first == last or links[first][0] > start):
                    part.starts.insert(0, 0)
                    before = keys[(start - 1) * WORD_BYTES : start * WORD_BYTES]
                    part.above.insert(0, words_of(before)[0])
                first = last
                yield pb.WatchResponse(part=part)
        yield pb.WatchResponse(end=end)

    def contents(self) -> list[Contents]:
        """Return all ranks' keys, by tier and group, as of the journal's last sequence.

        The ranks' segments must be kept.
        """
        self.collect()
        found = []
        for one in self._followed:
            segments = one.resolver.segments
            assert segments is not None
            for spot, keys in one.resolver.names.places().items():
                of_all = segments.of_all(keys)
                found.append(Contents(one.rank.number, spot, array("Q", keys), of_all))
        return found

    def states(self) -> list[pb.RankState]:
        return [_state(rank) for rank in self.ranks]


def _state(rank: RankIngest) -> pb.RankState:
    layout, trust = rank.layout, rank.trust
    return pb.RankState(
        rank=rank.number,
        trust=trust.level,
        reason=trust.reason,
        groups=[
            pb.Group(number=number, kind=one.kind, block_size=one.block_size, window=one.window)
            for number, one in sorted(layout.groups.items())
        ],
        lookahead=layout.lookahead,
        engine_sequence=rank.sequence,
        copies=rank.blocks_in_use(),
        capacity=rank.capacity,
    )


def _message(change: Change) -> pb.Change:
    if isinstance(change, Emptied):
        return pb.Change(emptied=pb.Emptied())
    tier, group = change.spot
    runs = [(segment, len(list(run))) for segment, run in groupby(change.segments)]
    keys = pb.Keys(
        tier=tier,
        group=group,
        keys=pack_words(change.keys),
        segments=[segment for segment, _ in runs],
        counts=[count for _, count in runs],
    )
    if isinstance(change, Added):
        keys.starts.extend(start for start, _ in change.links)
        keys.above.extend(above for _, above in change.links)
    return pb.Change(added=keys) if isinstance(change, Added) else pb.Change(gone=keys)
