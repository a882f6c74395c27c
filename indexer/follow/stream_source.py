"""One rank's ingestion: frames go in, and the index changes. No sockets; the clock is an argument.

The stream (`indexer.stream`) decides which batch is next, and the rank applies it to its state (keys in
the index); what the batch shows may change the trust. The caller (`indexer.follow.subscribe`, a
recording, a test) passes on the frames that arrived, and sets `RankIngest.ask` to carry out replays.
One file, since every method changes the state of one rank.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import attrgetter

import msgspec

from warmpath.indexer.engines.event import (
    Batch,
    Cleared,
    MalformedEventError,
    Tier,
    UnreadableEvent,
)
from warmpath.indexer.engines.wire import timestamp_of
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.lag import Lag
from warmpath.indexer.index.orphans import Orphans
from warmpath.indexer.rank import Rank
from warmpath.indexer.resolve.rank_state import RankState
from warmpath.indexer.resolve.saved import SavedResolver
from warmpath.indexer.stream.machine import SavedStream, Stream
from warmpath.indexer.stream.replay import AskReplay
from warmpath.indexer.stream.trust import UNSEEN
from warmpath.indexer.trust import BEHIND, DRIFTED, LOST_ROOM, PROMISED_SECONDS, Level, Trust

log = logging.getLogger(__name__)


class SavedRank(msgspec.Struct, frozen=True):
    """One rank's ingestion, from which the next process goes on."""

    pod: str
    rank: int
    model: str
    capacity: int
    stream: SavedStream
    resolver: SavedResolver
    limit: str = ""
    """Why the rank is degraded at best for as long as the engine lives; empty: no reason."""


ORPHAN_BYTES = 16 << 20
"""The most bytes of one rank's stores that wait for their parent."""

TWICE = "a block was stored twice: the cache has namespaces that events omit, such as those of extra_key"
"""The reason where an engine that keeps each block once stores one again."""

REPEATED = (
    "a block was announced again before it was removed, perhaps for a hit: as the cache's size (blocks) "
    "is not known, nothing shows whether a copy is left"
)
"""The reason where hits may have been announced as stores, and nothing could show whether they were."""

WHOLE = (
    "a slower tier finds blocks of %d tokens whole or not at all, and a part of one may be shown"
)
"""The reason where a tier's blocks have several of the cache's own, such as LMCache's chunks."""

AHEAD = (
    "a block is found only where the %d tokens behind it are the same; the first alone is compared"
)
"""The reason where a block's hash covers several tokens behind it: vLLM with several MTP modules."""

COPIES, HITS, CHUNKS, LOOKAHEAD = "copies", "hits", "chunks", "lookahead"
OTHER_RANK, BEFORE, LAG = "other rank", "before", "lag"
"""The subjects of limits; `BEFORE` is for reasons that an earlier process saved."""

NAMESPACES = "namespaces"
"""The subject of a limit: requests have namespaces that the engine's events omit."""

GONE = "its event stream is disconnected"
"""The reason, and the subject, of a limit: events that do not reach us."""

SAVED_LIMITS = (NAMESPACES, COPIES, BEFORE, CHUNKS, LOOKAHEAD)
"""The limits that hold for as long as the engine lives, whichever process follows it."""

LAG_SECONDS = 2.0
"""Seconds by which events may be applied late while the rank is exact."""
TOO_FAR_BEHIND = f"{BEHIND}: more than {LAG_SECONDS:g} s"
"""The reason for a limit beyond that."""

SILENT_SECONDS = 2.5
"""Seconds for which a connection may be silent until it counts as lost (`indexer.follow.subscribe`)."""

MOST_AHEAD = 256
"""The most frames that are scanned together."""

Clock = Callable[[], float]
"""Returns the time in seconds; all times of one process are of one clock."""


class Keeper:
    """What is told when a rank's state changes, so that it can be kept; this one keeps nothing."""

    def begins(self, rank: "RankIngest") -> None:
        """Take note that a rank's state is about to change."""

    def ends(self, rank: "RankIngest") -> None:
        """Take note that a rank's state has changed, or not."""


class RankIngest(Rank):
    """Keeps the index current with one rank, from its engine's own events; follows its stream."""

    has_events = True
    logs_reasons = True

    def __init__(
        self,
        source: RankSource,
        state: RankState,
        *,
        pending_bytes: int,
        stale_after: float,
        clock: Clock,
    ) -> None:
        super().__init__(source.pod, source.rank, UNSEEN, clock)
        self.source = source
        self.state = state
        self.stream = Stream(
            self,
            has_replay=source.has_replay,
            is_queue=source.is_queue,
            pending_bytes=pending_bytes,
            clock=clock,
        )
        self.lag = Lag(LAG_SECONDS)
        self.ask: Callable[[AskReplay], None] = lambda _: None
        """Carries out a replay that is asked for."""
        self.keeper = Keeper()
        self.pending_bytes = pending_bytes
        """The most bytes of live batches that may wait to be followed."""
        self.batches = 0
        self.malformed = 0
        self.drifts = 0
        """How often more blocks were announced than the cache can hold."""
        self.strays = 0
        """Events of ranks that are not configured, counted here by `indexer.follow.answer`."""
        self._stale_after = stale_after
        self._capacity = source.capacity
        self._ahead = 1
        """How many frames are scanned together."""
        self._is_rank_said = False
        """Whether the rank that its batches name was compared on this connection."""
        self._show_applied()

    # Nobody sets it. Readers in other threads find a group's blocks never before its layout.
    layout = property(attrgetter("state.groups.layout"))

    @property
    def lag_seconds(self) -> float:
        return self.lag.seconds

    def known_until(self, now: float) -> float:
        """Return the moment of the engine that the view shows, in seconds of the same clock as `now`."""
        return now - self.lag.seconds if self.is_connected else self.lost_at - SILENT_SECONDS

    @property
    def lag_batches(self) -> int:
        return self.lag.batches(self.sequence)

    @property
    def orphans(self) -> Orphans:
        return self.state.orphans

    @property
    def adapters(self) -> int:
        return self.state.counts.adapters

    def blocks(self) -> Mapping[Tier, int]:
        return self.state.blocks()

    def counts(self) -> dict[str, int]:
        stream, resolver = self.stream.counts, self.state.counts
        return {
            "batches": self.batches,
            "stored_blocks": resolver.stored_blocks,
            "removed_blocks": resolver.removed_blocks,
            "clears": resolver.clears,
            "duplicates": stream.duplicates,
            "gaps": stream.gaps,
            "replays": stream.replays,
            "restarts": stream.restarts,
            "malformed": self.malformed,
            "parentless": resolver.parentless,
            "adopted": resolver.adopted,
            "drifts": self.drifts,
            "overflows": stream.overflows,
            "skipped": resolver.other_groups + resolver.unplaced + self.strays,
        }

    # Its connection

    def connected(self) -> None:
        self.lag.begin()
        self._is_rank_said = False
        self.is_connected = True
        self.restrict(GONE, "")
        self.be_stale(None)
        self.stream.connected()
        self.settle()

    def disconnected(self) -> None:
        if self.is_connected:
            self.lost_at = self._clock()
        self.is_connected = False
        self.stream.disconnected()

    def tick(self) -> None:
        now = self._clock()
        if not self.is_connected:
            self.age(self.lost_at, self._stale_after, "the event stream is disconnected")
        # Everything else that happens to it settles, so only its trust can be news here.
        super().settle()
        self.lag.tick(self.sequence, now)
        gone = not self.is_connected and now - self.lost_at > PROMISED_SECONDS - SILENT_SECONDS
        self.limit(GONE if gone else "", GONE)
        self._limit_lag()

    def _limit_lag(self) -> None:
        self.limit(TOO_FAR_BEHIND if self.lag.is_behind else "", LAG)

    # Frames

    def received(self, topic: str, sequence: int, *, is_all: bool) -> None:
        if self._is_ours(topic):
            self.lag.received(sequence, is_all=is_all)

    def overflowed(self, messages: int) -> None:
        self.stream.counts.overflows += 1
        log.warning(
            "pod %s rank %d: its events come faster than they are followed: %d messages were dropped, "
            "as more than %d bytes waited",
            self.pod, self.number, messages, self.pending_bytes,
        )  # fmt: skip

    def live(self, topic: str, sequence: int, payload: bytes) -> None:
        if self._is_ours(topic):
            self.stream.live(sequence, payload)
            self.settle()

    def live_many(self, frames: Sequence[tuple[str, int, bytes]]) -> None:
        """Take live frames in the order in which they came."""
        at = 0
        while at < len(frames):
            run = self._run(frames, at, self._ahead)
            plain = self.state.scan(run) if run else 0
            # Batches after one that cannot be scanned are scanned again: scan only one next.
            self._ahead = min(2 * self._ahead, MOST_AHEAD) if plain and plain == len(run) else 1
            if plain:
                self._follow(run[:plain])
            else:
                self.live(*frames[at])
            at += plain or 1
        if frames:
            self._time(*frames[-1])

    def _run(self, frames: Sequence[tuple[str, int, bytes]], start: int, most: int) -> list[bytes]:
        """Return the payloads of frames from `start` on that are next in order, at most `most`."""
        topic = self.source.topic
        sequence = self.stream.expected
        run: list[bytes] = []
        for said, number, payload in islice(frames, start, start + most):
            if number != sequence or (topic and said != topic):
                break
            run.append(payload)
            sequence += 1
        return run

    def _time(self, topic: str, sequence: int, payload: bytes) -> None:
        """Measure how late a frame was applied, unless it was held or refused."""
        if sequence == self.sequence and self._is_ours(topic):
            self.lag.followed(timestamp_of(payload), sequence, self._clock())
            self._limit_lag()

    def _is_ours(self, topic: str) -> bool:
        # ZeroMQ matches topics by prefix, so a neighbour's frames arrive too.
        return not self.source.topic or topic == self.source.topic

    def replayed(self, ticket: int, sequence: int, payload: bytes) -> None:
        self.stream.replayed(ticket, sequence, payload)
        self.settle()

    def replay_ended(self, ticket: int) -> None:
        self.stream.replay_ended(ticket)
        self.settle()

    def replay_failed(self, ticket: int, reason: str) -> None:
        self.stream.replay_failed(ticket, reason)
        self.settle()

    def decoded(self, batch: Batch) -> None:
        """Take a batch that comes decoded, from whoever made or carried the events, as the next one.

        The rank must be connected, and have no replay. Whoever calls this knows when a batch before it
        was `missed`, since these batches have no numbers that could show it.
        """
        self.keeper.begins(self)
        self.batches += 1
        self._apply_batch(batch, self.stream.decoded())
        self.settle()

    # What is missing

    def missed(self, reason: str) -> None:
        """Degrade the trust, as events are known to be missing: the blocks shown may be gone."""
        self.stream.missed(reason)
        self.settle()

    def frame_malformed(self, reason: str) -> None:
        """Handle a message that is not a frame; it has no sequence that could show a gap."""
        self.malformed += 1
        log.warning("pod %s rank %d: frame dropped: %s", self.pod, self.number, reason)
        self.stream.stray(f"a frame is malformed: {reason}")
        self.settle()

    def answer_lost(self, reason: str) -> None:
        """Handle a fetch whose answer did not arrive: no other answer has the events in it, if any.

        Before the first event nothing is shown that could be wrong.
        """
        if self.sequence is not None:
            lost = f"an answer did not arrive, and its events are in no other: {reason}"
            self.stream.stray(lost)
            self.settle()

    def failed(self, reason: str) -> None:
        """Drop the rank's view and degrade its trust: a failure may have left a batch half applied."""
        self.keeper.begins(self)
        self.state.forget()
        self.stream.missed(reason)
        self.disconnected()
        self.settle()

    def engine_restarted(self, reason: str) -> None:
        """Handle a restart of the engine that was seen outside its events: a replay shows if it is true.

        Without a replay endpoint every block is in doubt.
        """
        self.stream.suspect(f"restarted: {reason}")
        self.settle()

    def emptied(self, reason: str) -> None:
        self.keeper.begins(self)
        if any(self.blocks().values()):
            log.info("pod %s rank %d: its blocks are dropped: %s", self.pod, self.number, reason)
        self.state.apply([Cleared()])
        self.settle()

    def lost_room(self) -> None:
        self._lack(LOST_ROOM)
        self.settle()

    def _lack(self, reason: str) -> None:
        self.keeper.begins(self)
        self.state.lost_room()
        self.stream.lacks(reason)

    # What its stream says

    def begin_life(self) -> None:
        self.keeper.begins(self)
        self.state.forget()
        self.lag.begin()
        for about in (COPIES, BEFORE, HITS, CHUNKS, LOOKAHEAD):
            self.restrict(about, "")

    def doubt(self) -> None:
        self.keeper.begins(self)
        self.state.doubt()

    def apply(self, sequence: int, payload: bytes) -> None:
        self.keeper.begins(self)
        self.batches += 1
        self._compare_rank(payload)
        if self.state.scan((payload,)):
            self._apply_scanned()
            return
        try:
            batch = self.source.decode(payload)
        except MalformedEventError as error:
            self.malformed += 1
            self.stream.malformed(sequence, str(error))
            return
        self._apply_batch(batch, sequence)

    def _follow(self, payloads: Sequence[bytes]) -> None:
        """Apply batches that are next in order and that the state has scanned."""
        self.keeper.begins(self)
        self._compare_rank(payloads[0])
        self.stream.follow(payloads)
        self.batches += len(payloads)
        self._apply_scanned()
        self.settle()

    def _compare_rank(self, payload: bytes) -> None:
        """Compare the rank that a connection's first batches name with the configured one."""
        own = self.source.said_rank
        if self._is_rank_said or own is None:
            return
        try:
            said = self.source.decode(payload).rank
        except MalformedEventError:
            return
        self._is_rank_said = True
        other = f"its events are those of the engine's rank {said} and are followed as rank {own}"
        self.restrict(OTHER_RANK, "" if said is None or said == own else other)

    def _apply_batch(self, batch: Batch, sequence: int) -> None:
        self._capacity = batch.capacity or self._capacity
        counts = self.state.counts
        clears, parentless = counts.clears, counts.parentless
        self.state.apply(batch.events)
        if counts.clears > clears:
            self.stream.cleared(sequence)
        for event in batch.unread:
            self._pass_over(event, sequence)
        self._judge(parentless)

    def _pass_over(self, event: UnreadableEvent, sequence: int) -> None:
        self.malformed += 1
        lost = f"{event.kind or 'an event'} of batch {sequence} cannot be read ({event.reason})"
        if event.is_store:
            self._lack(f"{lost}: the blocks that it stored are missing")
        else:
            self.stream.missed(f"{lost}: blocks may be shown that are gone")

    def _apply_scanned(self) -> None:
        is_left = True
        while is_left:
            parentless = self.state.counts.parentless
            is_left = self.state.apply_scanned(self._capacity, heals=self.stream.can_heal)
            self._judge(parentless)

    def _judge(self, parentless: int) -> None:
        """Change the trust as the applied batches require.

        `parentless` is how many blocks without a known parent were counted before them.
        """
        counts = self.state.counts
        if counts.again:
            counts.again = 0
            self.restrict(COPIES, TWICE)
        if counts.chunk_tokens:
            self.restrict(CHUNKS, WHOLE % counts.chunk_tokens)
            counts.chunk_tokens = 0
        if counts.lookahead:
            self.restrict(LOOKAHEAD, AHEAD % counts.lookahead)
            counts.lookahead = 0
        if counts.parentless > parentless and not self.stream.trust.is_damaged:
            self.stream.missed("a stored block's parent is unknown: an event was missed")
        elif self.stream.can_heal and self.state.can_settle(self._capacity):
            self.state.settle()
            self.stream.turned_over()
        in_use = self.state.blocks_in_use()
        if in_use is not None and 0 < self._capacity < in_use:
            # Give up the excess: more blocks were announced than the cache can hold.
            self.drifts += 1
            self.state.give_up_excess()
            self.stream.lacks(f"{DRIFTED}: {in_use} of {self._capacity}")
        self._limit_repeated()

    def _limit_repeated(self) -> None:
        is_unsure = not self._capacity and self.state.may_show_hits()
        self.restrict(HITS, REPEATED if is_unsure else "")

    def learn_capacity(self, blocks: int) -> None:
        if not self.source.capacity:
            self._capacity = blocks
            self._limit_repeated()

    def settle(self) -> None:
        self._show_applied()
        super().settle()
        self.keeper.ends(self)

    def _show_applied(self) -> None:
        # The stream's own number grows before the batch is applied: other threads would see it.
        self.sequence = self.stream.sequence
        self._blocks_in_use = self.state.blocks_in_use()

    # Its end, and its going on in another process

    def close(self) -> None:
        self.disconnected()
        self.state.close()

    @property
    def kept(self) -> tuple[object, ...]:
        """All that `save` returns beside names in arrays and the position; equal while it is."""
        trust = self.stream.trust
        return (
            *(trust.level, trust.reason, trust.passing, trust.heals_at),
            *(self._capacity, self._limits, self.state.changes),
        )

    def save(self, *, plain: bool = True) -> SavedRank:
        """Return what an other process goes on from; without `plain`, no names in arrays and digests."""
        limits = self._limits
        said = "; ".join(limits[about] for about in SAVED_LIMITS if about in limits)
        return SavedRank(
            pod=self.pod,
            rank=self.number,
            model=self.source.model,
            capacity=self._capacity,
            stream=self.stream.save(digests=plain),
            resolver=self.state.save(plain=plain),
            # A reason of the process before may have come again in this one.
            limit="; ".join(dict.fromkeys(said.split("; "))),
        )

    def restore(self, saved: SavedRank) -> None:
        """Continue from the state that an earlier process saved, before any frame is taken.

        The rank is stale until it connects.
        """
        self.state.restore(saved.resolver)
        self.stream.restore(saved.stream)
        self.be_stale(Trust(Level.STALE, "restored, not connected yet", self._clock()))
        self._capacity = self._capacity or saved.capacity
        self._limit_repeated()
        self.restrict(BEFORE, saved.limit)
        self._show_applied()
        self._logged = self.trust
