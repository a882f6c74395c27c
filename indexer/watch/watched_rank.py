"""A rank that a publisher beside its engine follows: its deltas applied to the index.

The publisher has done what `indexer.follow.rank_ingest` does in direct mode; what arrives are keys.
Sans-I/O: `indexer.watch.client` has the connection.
"""

import logging
from collections.abc import Callable, Mapping
from itertools import pairwise

from indexer.engines.cache_groups import Group, Layout
from indexer.engines.event import Tier
from indexer.index.contract import Links
from indexer.keys.word import unpack_words
from indexer.limits import Limits
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from indexer.process.shortened import shortened
from indexer.resolve.change import Added, Change, Emptied, Gone, Spot
from indexer.resolve.rank_slots import RankSlots
from indexer.trust import LOST_ROOM, MOST_REASON, Level, Trust

log = logging.getLogger(__name__)

TWICE = "its publisher names a key twice in one snapshot"


class WatchedRank:
    """Keeps the index current with one rank, from its publisher's deltas."""

    def __init__(
        self,
        pod: str,
        number: int,
        slots: RankSlots,
        *,
        stale_after: float,
        clock: Callable[[], float],
    ) -> None:
        self.pod = pod
        self.number = number
        self.layout = Layout()
        self.sequence: int | None = None
        self.capacity = 0
        self._copies: int | None = None
        self._slots = slots
        self._stale_after = stale_after
        self._clock = clock
        self._said = Trust(Level.COLD, "the publisher was not reached yet", clock())
        self._lost: Trust | None = None
        self._short: Trust | None = None
        """Set where part of it was given up for want of room, since the last snapshot."""
        self._limits = Limits(clock)
        """Why all that is told of it is to be doubted, however exact its publisher is."""
        self._problem = ""
        self._disconnected_at: float | None = clock()
        self._presumed = False
        """Whether what is disconnected says nothing of the engine."""
        self._deltas = 0
        self._snapshots = 0

    @property
    def trust(self) -> Trust:
        """How far what the index holds of this rank may be believed."""
        # Each is looked at once: another thread may ask meanwhile.
        short, said = self._short, self._said
        if short and said.level is Level.EXACT:
            return self._lost or short
        return self._lost or self._limits.on(said)

    @property
    def is_connected(self) -> bool:
        """Whether the engine's events reach us now: both the publisher and through it."""
        connected = self._disconnected_at is None or self._presumed
        return connected and self._said.level is not Level.STALE

    def learn_capacity(self, blocks: int) -> None:
        """Leave it to the publisher, which heals the view."""

    def engine_restarted(self, reason: str) -> None:
        """Leave it to the publisher, which follows the engine."""

    def copies(self) -> int | None:
        """Return how many blocks of its fastest tier are taken; None where its publisher is older."""
        return self._copies

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of a prompt's prefix each tier holds."""
        return self._slots.blocks(self.layout)

    def counts(self) -> Mapping[str, int]:
        """Return what happened so far."""
        return {"batches": self._deltas, "replays": self._snapshots}

    def begin_snapshot(self, *, keep: bool = False) -> None:
        """Forget what was known; a snapshot follows. With `keep` only when it has ended."""
        if keep and self._said.level is not Level.COLD:
            self._slots.set_aside()
            level = Level.DEGRADED
        else:
            self._slots.empty()
            level = Level.COLD
        self.limit("", TWICE)
        self._short = None
        self._snapshots += 1
        self._say(level, "a snapshot is under way")

    def end_snapshot(self) -> None:
        """Forget what was kept from before the snapshot; what is said of the rank follows."""
        self._slots.drop_doubted()

    def limit(self, reason: str, about: str = "") -> None:
        """Let the rank be degraded at best, for a reason; with an empty one no longer."""
        before = self.trust.level
        self._limits.set(about, reason)
        if self.trust.level is not before:
            self._log(before)

    def forget(self, reason: str) -> None:
        """Hold nothing and be disconnected: there is nobody who tells of the rank."""
        self._slots.empty()
        self._short = None
        self._lost = None
        self.sequence = None
        self._say(Level.COLD, reason)
        self._presumed = False
        self.disconnected(reason)

    def connected(self) -> None:
        """Take note that the publisher's deltas arrive."""
        self._disconnected_at = None
        self._problem = ""
        self._lost = None

    def disconnected(self, reason: str, *, presumed: bool = False) -> None:
        """Take note that they do not; `presumed` where it says nothing of the engine's events."""
        reason = shortened(reason, MOST_REASON)
        if self._disconnected_at is None:
            self._disconnected_at = self._clock()
            self._presumed = presumed
        self._problem = reason
        if self._said.level is Level.COLD:
            # Words change from one attempt to the next; since when it is cold does not.
            self._said = Trust(Level.COLD, reason, self._said.since)
        elif self._lost:
            self._lost = Trust(Level.STALE, reason, self._lost.since)

    def refused(self, reason: str) -> None:
        """Take note that something of the publisher's was not taken, until a snapshot comes."""
        if self._said.level is Level.EXACT:
            self._say(Level.DEGRADED, reason)

    def tick(self) -> None:
        """Let time pass: a connection gone for too long makes the rank stale."""
        gone = self._disconnected_at
        if gone is None or self._lost or self._clock() - gone < self._stale_after:
            return
        if self._said.level is not Level.COLD:
            reason = self._problem or "the publisher is disconnected"
            self._lost = Trust(Level.STALE, reason, self._clock())
            self._log(self._said.level)

    def take_part(self, part: pb.SnapshotPart) -> None:
        """Take some keys of a snapshot. Raises ValueError where it is malformed."""
        spot = Tier(part.tier), part.group
        if not self._slots.apply_whole(Added(spot, unpack_words(part.keys), links=_links(part))):
            # Another snapshot would say the same.
            self.limit(TWICE, TWICE)

    def take_keys(self, spot: Spot, keys: list[int]) -> None:
        """Take some keys of a snapshot."""
        self._slots.apply(Added(spot, keys))

    def take_delta(self, delta: pb.Delta, *, is_next: bool = False) -> None:
        """Take a delta. Raises ValueError where it is malformed; then nothing of it is applied.

        One that `is_next`, which follows in order what was applied, adds what is not there and takes
        away what is. Where it says otherwise it raises ValueError too, and only a snapshot helps.
        """
        changes = [_change(change) for change in delta.changes]
        Level(delta.state.trust)
        fits = [self._slots.apply_whole(change) for change in changes]
        if is_next and not all(fits):
            raise ValueError("it adds keys that are there, or takes away some that are not")
        self._deltas += 1
        self.take_state(delta.state)

    def take_state(self, state: pb.RankState) -> None:
        """Take what the publisher says of the rank. Raises ValueError where it is malformed."""
        level = Level(state.trust)
        self.layout = layout_of(state)
        self.sequence = state.engine_sequence if state.HasField("engine_sequence") else None
        self.capacity, self._copies = state.capacity, copies_of(state)
        self._say(level, state.reason)

    def lost_room(self) -> None:
        """Take note that the index gave up keys of the rank for want of room."""
        if not self._short:
            self._short = Trust(Level.DEGRADED, LOST_ROOM, self._clock())

    def _say(self, level: Level, reason: str) -> None:
        # A reason may quote a publisher, and goes into every answer.
        reason = shortened(reason, MOST_REASON)
        if (level, reason) != (self._said.level, self._said.reason):
            before, self._said = self.trust.level, Trust(level, reason, self._clock())
            if level is not before:
                self._log(before)

    def _log(self, before: Level) -> None:
        now = self.trust
        log.info(
            "pod %s rank %d: %s, was %s: %s", self.pod, self.number, now.level, before, now.reason
        )

    def close(self) -> None:
        """Let the rank hold nothing."""
        self._slots.empty()

    def check(self) -> None:
        """Hold nothing of its own that could disagree."""


def layout_of(state: pb.RankState) -> Layout:
    """Return how a rank's cache is divided, as its publisher says."""
    groups = {one.number: Group(one.kind, one.block_size, one.window) for one in state.groups}
    return Layout(groups, state.lookahead)


def copies_of(state: pb.RankState) -> int | None:
    """Return how many blocks of a rank's fastest tier are taken, as its publisher says."""
    return state.copies if state.HasField("copies") else None


def _links(keys: pb.Keys | pb.SnapshotPart) -> Links:
    links = list(zip(keys.starts, keys.above, strict=True))
    if any(one >= other for (one, _), (other, _) in pairwise(links)):
        raise ValueError("the positions of keys are not in order")
    return links


def _change(change: pb.Change) -> Change:
    kind = change.WhichOneof("kind")
    if kind == "added":
        added = change.added
        spot = Tier(added.tier), added.group
        return Added(spot, unpack_words(added.keys), links=_links(added))
    if kind == "gone":
        return Gone((Tier(change.gone.tier), change.gone.group), unpack_words(change.gone.keys))
    if kind == "emptied":
        return Emptied()
    raise ValueError("a change says nothing")
