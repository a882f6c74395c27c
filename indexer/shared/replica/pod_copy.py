"""A router's own copy of what one pod holds, kept current from the shared index. Sans-I/O.

    nothing -> needed -> reading -> read -> following
       ^          ^         |        |          |
       |          +---------+--------+----------+   another claim, or a log that does not follow
       +---- nobody holds the pod, or its keys are others

The buckets are read while they change: what is read of them is at least as new as the record was before
(`position`), and may be newer. The log after that position says what came since, in order; adding and
removing are idempotent, so the copy is right once it has all that can have been read. What the writer
had under way when the reading ended is in the log's next entry, or, where there is none, was complete
before the writer's next audit. And what was missing from a bucket, because Redis had let go of it, is
found out by an audit. So the pod is degraded until its writer has audited all that was read.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from indexer.invariant import BrokenInvariantError
from indexer.message import read_message
from indexer.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from indexer.resolve.change import Spot
from indexer.shared.layout.names import Names
from indexer.shared.layout.record import Claim, Record
from indexer.shared.records.registry import UNWRITTEN, nobody, refusal
from indexer.shared.records.unconfirmed import Doubt
from indexer.shared.redis.command import Command, Reply
from indexer.watch.watched_rank import WatchedRank

log = logging.getLogger(__name__)

PAGE = 64
"""Entries of a log read at once: each is what its writer put into one batch."""
OLD = "the copy is of an earlier claim: it is to be read anew"
CATCHING_UP = "the copy is new: its writer has not confirmed yet what was read"


class State(StrEnum):
    """Where a copy is."""

    NOTHING = "nothing"
    """There is nothing to be copied."""
    NEEDED = "needed"
    READING = "reading"
    READ = "read"
    """The buckets are read; what is said of the pod is not known yet to be of the same claim."""
    FOLLOWING = "following"


class Resync(StrEnum):
    """Why a pod's blocks are read from the buckets."""

    START = "start"
    """It was not held."""
    CLAIM = "claim"
    """Its writer has written everything anew, or there is another one."""
    LOG = "log"
    """The log does not go on from the copy: it was cut, lost, or fell back."""
    MALFORMED = "malformed"
    """The log could not be read."""
    FAILED = "failed"
    """Copying went wrong: a bug of ours."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose a slot is."""

    copy: "PodCopy"
    rank: int
    spot: Spot


@dataclass(slots=True)
class Counts:
    """What happened to a copy so far."""

    resyncs: Counter[Resync]
    entries: int = 0
    """Of the log, applied."""


class PodCopy:
    """One pod's copy: where it is in the pod's log, and what it needs to go on.

    `ranks` are all of the pod's, in order. `keyspace` is the fingerprint of the router's own keys,
    `prefix` is where its record is.
    """

    def __init__(self, pod: str, ranks: Sequence[WatchedRank], keyspace: str, prefix: str) -> None:
        self.pod = pod
        self.state = State.NOTHING
        self.position = 0
        """The last sequence of its writer's journal that is in the copy."""
        self.counts = Counts(Counter())
        self._ranks = ranks
        self._keyspace = keyspace
        self._prefix = prefix
        self._record: Record | None = None
        """As last read."""
        self._begun: Record | None = None
        """As it was before the buckets were read: of the claim that the copy is of."""
        self._mark: Record | None = None
        """As it was first read after the buckets were; None once all that was under way is known."""
        self._doubt = Doubt()
        """Of what was read from the buckets."""
        self._nothing = ""
        """Why there is nothing."""
        self._problem = ""

    @property
    def lag(self) -> int:
        """By how many sequences the copy is behind its record."""
        record = self._record
        return max(0, record.applied - self.position) if record else 0

    def asked(self, names: Names) -> Command | None:
        """Return what is to be asked for what comes next in the log, before the record is asked for."""
        if self.state not in {State.READ, State.FOLLOWING}:
            return None
        # An entry is named by the last sequence that is in it.
        words = "XRANGE", names.log(self.pod), f"{self.position + 1}-0", "+", "COUNT", PAGE
        return Command(words)

    def take(self, record: Record | None, limit: str, entries: Reply = None) -> bool:
        """Take a record that was read without an error; return whether the log has more.

        `limit` is the reason why the pod's ranks cannot be exact now (`Registry.limit`); empty: none.
        `entries` are the reply to `asked`'s command, which was carried out before the record was read.
        """
        if self._problem:
            log.info("pod %s: the shared index answers again", self.pod)
            self._problem = self._nothing = ""
        claim = record.claim if record else None
        if record is None or claim is None:
            self._hold_nothing(
                nobody(self._prefix) if record is None else record.reason or UNWRITTEN
            )
            return False
        if refused := refusal(claim, self._keyspace, len(self._ranks)):
            self._hold_nothing(refused, level=logging.WARNING)
            return False
        before, self._record = self._record, record
        self._nothing = ""
        for rank in self._ranks:
            # First, so that nothing is believed for a moment that is not to be.
            if limit:
                rank.limit(limit)
            rank.connected()
        if self.state is State.NOTHING:
            self._need(Resync.START)
        elif self.state is not State.NEEDED and not self._is_of(claim):
            self._need(Resync.CLAIM)
        has_more = False
        if entries is not None and self.state in {State.READ, State.FOLLOWING}:
            if self.state is State.READ:
                self._take_over(record)
            has_more = self._follow(record, before, entries)
        self._limit(limit)
        return has_more and self.state is State.FOLLOWING

    def _is_of(self, claim: Claim) -> bool:
        return bool(self._begun and self._begun.claim and self._begun.claim.base == claim.base)

    def _take_over(self, record: Record) -> None:
        """Say what was said of the ranks where the reading began; the log says what was since."""
        assert self._begun is not None
        for rank in self._ranks:
            rank.limit(CATCHING_UP)
            rank.end_snapshot()
            said = self._begun.states.get(rank.number)
            if said is not None:
                rank.take_state(said)
        self._mark = record
        self._doubt.lost()
        self.state = State.FOLLOWING

    def _follow(self, record: Record, before: Record | None, entries: Reply) -> bool:
        """Apply what follows in the log; return whether there may be more."""
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
        # What an earlier record told of must be in the log by now.
        due = before.applied if before else 0
        if self.position < due or record.applied < self.position:
            self._need(Resync.LOG)
        return False

    def _apply(self, entry: Mapping[bytes, bytes]) -> bool:
        """Apply an entry of the log; return whether it follows what is held.

        Raises ValueError, KeyError or IndexError where it is malformed.
        """
        deltas = read_message(pb.Deltas, entry[b"deltas"]).deltas
        if not deltas:
            raise ValueError("an entry says nothing")
        for delta in deltas:
            if delta.sequence != self.position + 1:
                return False
            self._ranks[delta.state.rank].take_delta(delta)
            self.position = delta.sequence
        self.counts.entries += 1
        return True

    def _limit(self, limit: str) -> None:
        mark, record = self._mark, self._record
        if record and self.state is State.FOLLOWING:
            self._doubt.read(record.token, record.audits)
            if mark:
                audited = record.audits > mark.audits and self.position == record.applied
                if audited or self.position > mark.applied:
                    mark = self._mark = None
        if self.state is not State.FOLLOWING:
            limit = limit or OLD
        elif mark or self._doubt.holds:
            limit = limit or CATCHING_UP
        for rank in self._ranks:
            rank.limit(limit)

    def _need(self, why: Resync) -> None:
        self.state = State.NEEDED
        self.counts.resyncs[why] += 1
        log.info("pod %s: its blocks are to be read from the shared index: %s", self.pod, why)
        for rank in self._ranks:
            rank.limit(OLD)

    def _hold_nothing(self, reason: str, *, level: int = logging.INFO) -> None:
        self._record = None
        self.state = State.NOTHING
        if reason != self._nothing:
            self._nothing = reason
            log.log(level, "pod %s: %s", self.pod, reason)
            for rank in self._ranks:
                rank.forget(reason)

    def lost(self, problem: str) -> None:
        """Take note that nothing could be read: what is held is less true by the second."""
        if not self._problem:
            log.warning("pod %s: %s", self.pod, problem)
        self._problem = problem
        for rank in self._ranks:
            rank.limit(problem)
            rank.disconnected(problem, presumed=True)

    def fail(self, problem: str) -> None:
        """Take note that what it was told may have been taken by half: it is to be read anew."""
        self.lost(problem)
        if self.state in {State.READ, State.FOLLOWING}:
            self._need(Resync.FAILED)

    def begin(self) -> dict[int, Holder]:
        """Begin to read the buckets; return the slots that count, from the record as last read.

        What was held from the same writer stays until the reading is over: most of it is still true.
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
        self.state = State.READING
        return {
            claim.slot(number): Holder(self, place.rank, (place.tier, place.group))
            for number, place in enumerate(claim.places)
            if place is not None and place.rank < len(self._ranks)
        }

    def hold(self, rank: int, spot: Spot, keys: list[int]) -> None:
        """Take some keys that were read from the buckets."""
        if self.state is State.READING:
            self._ranks[rank].take_keys(spot, keys)

    def read(self) -> None:
        """Take note that every bucket was read."""
        if self.state is State.READING:
            self.state = State.READ

    def abandon(self) -> None:
        """Take note that the reading was given up."""
        if self.state is State.READING:
            self.state = State.NEEDED

    def drop(self) -> None:
        """Take nothing any more."""
        self.state = State.NOTHING

    def check(self) -> None:
        """Raise BrokenInvariantError where it contradicts itself."""
        if self.state in {State.READING, State.READ, State.FOLLOWING}:
            if self._begun is None or self._record is None:
                raise BrokenInvariantError("a copy of nothing")
            if self.position < self._begun.applied:
                raise BrokenInvariantError("the copy is older than where it began")
