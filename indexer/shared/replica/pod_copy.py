"""A router's own copy of what one pod holds, kept current from the shared index. Sans-I/O.

    nothing -> needed -> reading -> read -> following
       ^          ^         |        |          |
       |          +---------+--------+----------+   another claim, or a log that does not follow
       +---- the pod has no record, or this router cannot use its keys

The buckets are read while they change: their content is at least as new as the record that was read
before them (`position`), and may be newer. The log after that position has the later changes, in order.
Adding and removing keys may be repeated, so the copy is right once it has every change that the buckets
can have shown. A change that the writer had under way when the reading ended is in the log's next entry;
where there is none, the change was complete before the writer's next audit. An audit also finds what
Redis had dropped from a bucket. So the pod is degraded until its writer has audited all that was read.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from warmpath.indexer.resolve.change import Spot
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim, Record
from warmpath.indexer.shared.records.registry import (
    AWAY,
    LATE,
    UNWRITTEN,
    Registry,
    Unconfirmed,
    nobody,
    refusal,
)
from warmpath.indexer.shared.redis.command import Command, CommandFailedError, Reply
from warmpath.indexer.trust import PROMISED_SECONDS
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.process.bytes import read_message
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

log = logging.getLogger(__name__)

PAGE = 64
"""Entries of a log that are read at once; each has the changes of one batch of the writer."""
OLD = "this router's copy of the pod has to be read anew"
CATCHING_UP = (
    "this router's copy is new, and its publisher has not audited the index since it was read"
)


Hold = Callable[[list[int]], None]
"""Takes the keys that a slot holds."""


class CopyState(StrEnum):
    """The stages of a copy."""

    NOTHING = "nothing"
    """The pod has nothing that could be copied."""
    NEEDED = "needed"
    """The buckets have to be read."""
    READING = "reading"
    READ = "read"
    """The buckets are read; the next reading of the record shows whether it still has the same claim."""
    FOLLOWING = "following"
    """The copy follows the pod's log."""


class Resync(StrEnum):
    """Why a pod's blocks are read from the buckets."""

    START = "start"
    """There was no copy."""
    CLAIM = "claim"
    """The pod's writer has written everything again, or another writer has."""
    LOG = "log"
    """The log does not go on from the copy's position: entries were cut off or lost."""
    MALFORMED = "malformed"
    """The log could not be read."""
    FAILED = "failed"
    """Copying went wrong: a bug of ours."""


@dataclass(slots=True)
class CopyCounts:
    """Counts of the work on all copies so far."""

    resyncs: Counter[Resync] = field(default_factory=Counter)
    entries: int = 0
    """Entries of the log that were applied."""


class PodCopy:
    """One pod's copy: its position in the pod's log, and what it needs to go on.

    `ranks` are the pod's, in order. `keyspace` is the fingerprint of the router's own keys.
    """

    def __init__(
        self,
        pod: str,
        ranks: Sequence[WatchedRank],
        keyspace: str,
        *,
        names: KeyNames,
        registry: Registry,
        counts: CopyCounts,
    ) -> None:
        self.pod = pod
        self.state = CopyState.NOTHING
        self.position = 0
        """The last sequence of the journal of the pod's writer that is in the copy."""
        self.moment = -math.inf
        """The last moment, by the router's clock, up to which the copy shows the engine."""
        self._ranks = ranks
        self._keyspace = keyspace
        self._names = names
        self._registry = registry
        self._counts = counts
        self._record: Record | None = None
        """The record as last read; None where the pod has none."""
        self._begun: Record | None = None
        """The record as it was before the buckets were read; the copy is of its claim. None: unread."""
        self._mark: Record | None = None
        """The record as first read after the buckets; None once the copy has every change that was under
        way then."""
        self._doubt = Unconfirmed()
        """The doubt about what was read from the buckets."""
        self._nothing = ""
        """Why the pod has nothing that could be copied."""
        self._problem = ""
        """Why the last reading failed; empty where it did not."""
        self._is_limited = True
        """Whether the last reading left a reason why the ranks cannot be exact."""

    @property
    def lag(self) -> int:
        record = self._record
        return max(0, record.applied - self.position) if record else 0

    def asked(self) -> Command | None:
        """Return the command for the log's next entries, to be run before the record is read.

        None while the copy follows no log.
        """
        if self.state not in {CopyState.READ, CopyState.FOLLOWING}:
            return None
        # An entry is named by the last sequence that is in it.
        words = "XRANGE", self._names.log(self.pod), f"{self.position + 1}-0", "+", "COUNT", PAGE
        return Command(words)

    def take(self, entries: Reply, now: float) -> bool:
        """Take the record as the registry last read it; return whether the log may have more entries.

        `entries` are the reply to the command of `asked`, which Redis ran before it read the record.
        """
        reading, limit = self._registry.reading(self.pod), self._registry.limit(self.pod)
        is_unread = isinstance(entries, CommandFailedError)
        if problem := reading.problem or (f"{AWAY}{entries}" if is_unread else ""):
            self.lost(problem)
            return False
        if self._problem:
            log.info("pod %s: the shared index can be read again", self.pod)
            self._problem = self._nothing = ""
        record = reading.record
        claim = record.claim if record else None
        if record is None or claim is None:
            why = nobody(self._names.prefix) if record is None else record.reason or UNWRITTEN
            self._hold_nothing(why)
            return False
        if refused := refusal(claim, self._keyspace, len(self._ranks)):
            self._hold_nothing(refused, level=logging.WARNING)
            return False
        before, self._record = self._record, record
        self._nothing = ""
        for rank in self._ranks:
            # The limit comes first, so that the rank is not exact for a moment.
            if limit:
                rank.limit(limit)
            if limit == LATE:
                rank.disconnected(LATE, presumed=True)
            else:
                rank.connected()
        if self.state is CopyState.NOTHING:
            self._need(Resync.START)
        elif self.state is not CopyState.NEEDED and not self._is_of(claim):
            self._need(Resync.CLAIM)
        has_more = False
        if entries is not None and self.state in {CopyState.READ, CopyState.FOLLOWING}:
            if self.state is CopyState.READ:
                self._take_over(record)
            has_more = self._follow(record, before, entries)
        if self.state is CopyState.FOLLOWING and self.position >= record.applied:
            self.moment = reading.moment.at
        self._limit(limit, now)
        return has_more and self.state is CopyState.FOLLOWING

    def _late(self, now: float) -> str:
        return LATE if now - self.moment > PROMISED_SECONDS else ""

    @property
    def due(self) -> float:
        """When, by the router's clock, its ranks get late unless more is read; infinity: not exact."""
        return self.moment + PROMISED_SECONDS if not self._is_limited else math.inf

    def expire(self, now: float) -> None:
        """Degrade the ranks if the copy shows no moment that is late enough. Thread-safe."""
        if not self._is_limited and (late := self._late(now)):
            for rank in self._ranks:
                rank.limit(late)

    def _is_of(self, claim: Claim) -> bool:
        return bool(self._begun and self._begun.claim and self._begun.claim.base == claim.base)

    def _take_over(self, record: Record) -> None:
        """Give the ranks their states from before the buckets were read; the log has the later ones."""
        assert self._begun is not None
        for rank in self._ranks:
            rank.limit(CATCHING_UP)
            rank.end_snapshot()
            if (said := self._begun.states.get(rank.number)) is not None:
                rank.take_state(said)
        self._mark = record
        self._doubt.lost()
        self.state = CopyState.FOLLOWING

    def _follow(self, record: Record, before: Record | None, entries: Reply) -> bool:
        try:
            for _, fields in entries:
                if not self._apply(dict(zip(fields[::2], fields[1::2], strict=True))):
                    self._need(Resync.LOG)
                    return False
        except (ValueError, KeyError, IndexError) as error:
            log.warning("pod %s: its log cannot be read: %s", self.pod, error)
            self._need(Resync.MALFORMED)
            return False
        if len(entries) == PAGE:
            return True
        # The log was read after the previous record, so it has at least that record's changes.
        due = before.applied if before else 0
        if self.position < due or record.applied < self.position:
            self._need(Resync.LOG)
        return False

    def _apply(self, entry: Mapping[bytes, bytes]) -> bool:
        deltas = read_message(pb.Deltas, entry[b"deltas"]).deltas
        if not deltas:
            raise ValueError("an entry has no deltas")
        for delta in deltas:
            if delta.sequence != self.position + 1:
                return False
            self._ranks[delta.state.rank].take_delta(delta)
            self.position = delta.sequence
        self._counts.entries += 1
        return True

    def _limit(self, limit: str, now: float) -> None:
        mark, record = self._mark, self._record
        if record and self.state is CopyState.FOLLOWING:
            self._doubt.read(record.token, record.audits)
            if mark:
                audited = record.audits > mark.audits and self.position == record.applied
                if audited or self.position > mark.applied:
                    mark = self._mark = None
        if self.state is not CopyState.FOLLOWING:
            limit = limit or OLD
        elif mark or self._doubt.holds:
            limit = limit or CATCHING_UP
        limit = limit or self._late(now)
        self._is_limited = bool(limit)
        for rank in self._ranks:
            rank.limit(limit)

    def _need(self, why: Resync) -> None:
        self.state = CopyState.NEEDED
        self._counts.resyncs[why] += 1
        log.info("pod %s: its blocks are to be read from the shared index: %s", self.pod, why)
        for rank in self._ranks:
            rank.limit(OLD)

    def _hold_nothing(self, reason: str, *, level: int = logging.INFO) -> None:
        self._record = None
        self.state = CopyState.NOTHING
        if reason != self._nothing:
            self._nothing = reason
            log.log(level, "pod %s: %s", self.pod, reason)
            for rank in self._ranks:
                rank.forget(reason)

    def lost(self, problem: str) -> None:
        """Disconnect the ranks, since nothing could be read; they are stale after a while."""
        if problem != self._problem:
            log.warning("pod %s: %s", self.pod, problem)
        self._problem = problem
        self._is_limited = True
        for rank in self._ranks:
            rank.limit(problem)
            rank.disconnected(problem, presumed=True)

    def fail(self, problem: str) -> None:
        """Schedule a new read of the copy: an error may have left changes applied in part."""
        self.lost(problem)
        if self.state in {CopyState.READ, CopyState.FOLLOWING}:
            self._need(Resync.FAILED)

    def begin(self) -> dict[int, Hold]:
        """Begin to read the buckets; return what takes the keys of each slot of the record as last read.

        Blocks that were copied from the same writer stay until the reading is over, since the pod still
        holds most of them.
        """
        record, old = self._record, self._begun
        assert record is not None
        assert record.claim is not None
        claim = record.claim
        keep = bool(old and old.claim and old.claim.owner == claim.owner)
        for rank in self._ranks:
            rank.begin_snapshot(keep=keep)
        self._begun = record
        self.position = record.applied
        self.state = CopyState.READING
        return {
            claim.slot(number): partial(self._hold, place.rank, (place.tier, place.group))
            for number, place in enumerate(claim.places)
            if place is not None and place.rank < len(self._ranks)
        }

    def _hold(self, rank: int, spot: Spot, keys: list[int]) -> None:
        if self.state is CopyState.READING:
            self._ranks[rank].take_keys(spot, keys)

    def end(self, state: CopyState) -> None:
        """End the reading, if one is under way: every bucket was read, or it was given up."""
        if self.state is CopyState.READING:
            self.state = state
