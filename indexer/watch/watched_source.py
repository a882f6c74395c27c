"""A rank that a publisher beside its engine follows: its deltas applied to the index.

The publisher has already done the work of `indexer.follow.stream_source`, so deltas carry keys.
Sans-I/O: `indexer.watch.client` has the connection.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise

from warmpath.indexer.engines.cache_groups import Group, Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.contract import Links
from warmpath.indexer.keys.key import unpack_words
from warmpath.indexer.rank import Rank
from warmpath.indexer.resolve.change import Added, Change, Emptied, Gone, Spot
from warmpath.indexer.resolve.rank_slots import RankSlots
from warmpath.indexer.stream.replay import MOST_SEQUENCE
from warmpath.indexer.trust import LOST_ROOM, MOST_REASON, PROMISED_SECONDS, Level, Trust
from warmpath.process.logs import shortened
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

STEP = 0.05
"""Least seconds between two beats that count: ZeroMQ's thread gets so much time to read its sockets."""
BEATS = 3
"""Beats until a message that came before the first was surely read: ZeroMQ's thread has taken it from
the socket by the second, and the loop has taken it from that thread by the third."""


class Pulse:
    """Records when an event loop ran, to know up to when it has read all messages. Times are seconds.

    A process that was stopped, or got no processor time, finds everything that was sent to it meanwhile
    in its sockets when it goes on. Until then it cannot know that it is behind.
    """

    def __init__(self) -> None:
        self._beats: deque[float] = deque(maxlen=BEATS)

    def beat(self, now: float) -> None:
        if not self._beats or now - self._beats[-1] >= STEP:
            self._beats.append(now)

    @property
    def is_known(self) -> bool:
        return len(self._beats) == BEATS

    @property
    def known_until(self) -> float:
        """The last moment of which all messages were taken; minus infinity before the first."""
        return self._beats[0] if self.is_known else -math.inf


MOST_BLOCKS = 1 << 53
"""The most blocks of a rank: pages and metrics count in floats, which have each number up to this."""
MOST = {"engine_sequence": MOST_SEQUENCE, "copies": MOST_BLOCKS, "capacity": MOST_BLOCKS}
"""The highest figures of a rank's state, by field."""

SILENT = f"its publisher has said nothing for {PROMISED_SECONDS:g} s"
"""The reason, and the subject, of a limit (`indexer.rank.Rank.limit`)."""

TWICE = "its publisher names a key twice in one snapshot"


class WatchedRank(Rank):
    """Keeps the index current with one rank, from its publisher's deltas."""

    has_events = True

    def __init__(
        self,
        pod: str,
        number: int,
        slots: RankSlots,
        *,
        stale_after: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(pod, number, "the publisher was not reached yet", clock)
        self._slots = slots
        self._stale_after = stale_after
        self._problem = ""
        self._disconnected_at: float | None = self.lost_at
        self._heard_at = self.lost_at
        self._heartbeat = math.inf
        """The longest silence of its publisher, in seconds, if the publisher says it."""
        self._presumed = False
        """Whether to assume that events still reach the publisher, although it is disconnected."""
        self._deltas = 0
        self._snapshots = 0

    def blocks(self) -> Mapping[Tier, int]:
        return self._slots.blocks(self.layout)

    def counts(self) -> Mapping[str, int]:
        """Return counters: `batches` are applied deltas, `replays` are snapshots."""
        return {"batches": self._deltas, "replays": self._snapshots}

    def begin_snapshot(self, *, keep: bool = False) -> None:
        """Forget the rank's blocks, as a snapshot follows. With `keep` they stay until it has ended."""
        if keep and self._said.level is not Level.COLD:
            self._slots.set_aside()
            level = Level.DEGRADED
        else:
            self._slots.empty()
            level = Level.COLD
        self._snapshots += 1
        self._set_trust(level, "a snapshot is under way")
        self.limit("", TWICE)
        self.limit("", LOST_ROOM)

    def end_snapshot(self) -> None:
        """Forget the blocks kept from before the snapshot. The caller passes the rank's state next."""
        self._slots.drop_doubted()

    def forget(self, reason: str) -> None:
        """Hold nothing and be disconnected: no publisher follows the rank any more."""
        self._slots.empty()
        self.sequence = None
        self._set_trust(Level.COLD, reason)
        self.be_stale(None)
        self.settle()
        self.limit("", LOST_ROOM)
        self._presumed = False
        self.disconnected(reason)

    def connected(self) -> None:
        self._disconnected_at = None
        self._problem = ""
        self.be_stale(None)
        self._judge()
        self.limit("", SILENT)

    def disconnected(self, reason: str, *, presumed: bool = False) -> None:
        """Begin a disconnection; with `presumed`, events are assumed to reach the publisher still."""
        reason = shortened(reason, MOST_REASON)
        if self._disconnected_at is None:
            self._disconnected_at = self._clock()
            self._presumed = presumed
        self._problem = reason
        # Each attempt may change the reason; `since` stays, as the level was the same all the time.
        if self._said.level is Level.COLD:
            self.believe(Trust(Level.COLD, reason, self._said.since))
        elif self._stale:
            self.be_stale(Trust(Level.STALE, reason, self._stale.since))
        self._judge()

    def refused(self, reason: str) -> None:
        """Degrade the rank until the next snapshot, since a message of its publisher was refused."""
        if self._said.level is Level.EXACT:
            self._set_trust(Level.DEGRADED, reason)

    def tick(self) -> None:
        now, gone = self._clock(), self._disconnected_at
        speaks = (gone is not None and not self._presumed) or self._heartbeat < PROMISED_SECONDS
        is_late = speaks and now - self._heard_at > PROMISED_SECONDS
        self.limit(SILENT if is_late else "", SILENT)
        if gone is not None:
            self.age(gone, self._stale_after, self._problem or "the publisher is disconnected")
            self.settle()

    def heard(self, heartbeat: float | None = None) -> None:
        self._heard_at = self._clock()
        if heartbeat is not None:
            self._heartbeat = heartbeat

    def take_part(self, part: pb.SnapshotPart) -> None:
        """Take some keys of a snapshot. Raises ValueError where it is malformed."""
        spot = Tier(part.tier), part.group
        if not self._slots.apply_whole(Added(spot, unpack_words(part.keys), links=_links(part))):
            # Asking for another snapshot would not help: it would name the key twice again.
            self.limit(TWICE, TWICE)

    def take_keys(self, spot: Spot, keys: list[int]) -> None:
        self._slots.apply(Added(spot, keys))

    def take_delta(self, delta: pb.Delta, *, is_next: bool = False) -> None:
        """Apply a delta. Raises ValueError where it is malformed; then nothing of it is applied.

        With `is_next` it follows the last applied delta, so it must add only absent keys and remove
        only present ones. If not, it is applied and raises ValueError; only a snapshot helps then.
        """
        changes = [_change(change) for change in delta.changes]
        check_state(delta.state)
        fits = [self._slots.apply_whole(change) for change in changes]
        if is_next and not all(fits):
            raise ValueError("it adds keys that are held already, or removes keys that are not")
        self._deltas += 1
        self.take_state(delta.state)

    def take_state(self, state: pb.RankState) -> None:
        """Take the rank's state from its publisher. Raises ValueError where it is malformed."""
        check_state(state)
        self.take_figures(*figures_of(state))
        self._set_trust(Level(state.trust), state.reason)

    def lost_room(self) -> None:
        self.limit(LOST_ROOM, LOST_ROOM)

    def _set_trust(self, level: Level, reason: str) -> None:
        # A reason may quote a publisher, and goes into every answer.
        reason = shortened(reason, MOST_REASON)
        if (level, reason) != (self._said.level, self._said.reason):
            self.believe(Trust(level, reason, self._clock()))
        self._judge()
        self.settle()

    def _judge(self) -> None:
        """Derive whether the engine's events reach us, and since when they do not."""
        gone = None if self._presumed else self._disconnected_at
        self.is_connected = gone is None and self._said.level is not Level.STALE
        self.lost_at = self._said.since if gone is None else gone

    def close(self) -> None:
        self._slots.empty()


def check_state(state: pb.RankState) -> None:
    """Raise ValueError where a rank's state has a value that no engine leads to."""
    Level(state.trust)
    layout_of(state)
    for name, most in MOST.items():
        if getattr(state, name) > most:
            raise ValueError(f"{name} is {getattr(state, name)}; it must be {most} or less")


def figures_of(state: pb.RankState) -> tuple[Layout, int | None, int, int | None]:
    """Return a rank's layout, the engine's last sequence, and its cache's blocks: all, and those in use.

    None: no sequence yet; blocks in use that an older publisher does not tell. 0 blocks: not known.
    """
    sequence = state.engine_sequence if state.HasField("engine_sequence") else None
    in_use = state.copies if state.HasField("copies") else None
    return layout_of(state), sequence, state.capacity, in_use


def layout_of(state: pb.RankState) -> Layout:
    """Return how a rank's cache is divided, as its publisher says."""
    groups = {one.number: Group(one.kind, one.block_size, one.window) for one in state.groups}
    return Layout(groups, state.lookahead)


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
    raise ValueError("a change is of no known kind")
