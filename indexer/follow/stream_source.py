"""One rank's ingestion: frames go in, and the index changes. No sockets; the clock is an argument.

A frame goes through the stream (order), the applier (decoding and trust) and the rank's state (keys in
the index). The caller (`indexer.follow.subscribe`, a recording, a test) passes on the frames that
arrived, and carries out the replay that is asked for in return. It is one class, since it logs each
change of trust, and nearly every method may change the trust.

One rank's ingestion as one process saves it for the next.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.engines.event import Batch, Cleared, Tier
from warmpath.indexer.engines.wire import timestamp_of
from warmpath.indexer.follow.applier import BEFORE, CHUNKS, COPIES, LOOKAHEAD, Applier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.lag import Lag
from warmpath.indexer.resolve.rank_state import RankState
from warmpath.indexer.resolve.saved import SavedResolver
from warmpath.indexer.stream.action import Action, AskReplay
from warmpath.indexer.stream.machine import SavedStream, Stream
from warmpath.indexer.trust import (
    BEHIND,
    LOST_ROOM,
    PROMISED_SECONDS,
    Trust,
    TrustHistory,
    TrustLimits,
)
from warmpath.process.invariant import BrokenInvariantError

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

NAMESPACES = "namespaces"
"""The subject of a limit: requests have namespaces that the engine's events omit."""

LAG = "lag"
"""The subject of a limit: events that are followed late."""

SAVED_LIMITS = (NAMESPACES, COPIES, BEFORE, CHUNKS, LOOKAHEAD)
"""The limits that hold for as long as the engine lives, whichever process follows it."""

LAG_SECONDS = 2.0
"""Seconds by which events may be applied late while the rank is exact."""

SILENT_SECONDS = 2.5
"""Seconds for which a connection may be silent until it counts as lost (`indexer.follow.subscribe`)."""

GONE = "its event stream is disconnected"
"""The reason, and the subject, of a limit: events that do not reach us."""

MOST_AHEAD = 256
"""The most frames that are scanned together."""

Clock = Callable[[], float]
"""Seconds; the same clock for all times of one process."""


class RankIngest:
    """Keeps the index current with one rank, from the engine's own events."""

    def __init__(
        self,
        source: RankSource,
        state: RankState,
        *,
        pending_bytes: int,
        stale_after: float,
        lag_seconds: float = LAG_SECONDS,
        clock: Clock,
    ) -> None:
        self.source = source
        self.pod = source.pod
        self.number = source.rank
        """The rank's number in its pod."""
        self.is_connected = False
        """Whether its events reach us now."""
        self.pending_bytes = pending_bytes
        """Bytes of live batches that may wait to be followed."""
        self.lag = Lag(lag_seconds)
        self.lost_at = clock()
        """Since when its events do not reach us; of no meaning while they do."""
        self._clock = clock
        self.state = state
        self._groups = state.groups
        self._limits = TrustLimits(clock)
        self._ahead = 1
        """How many frames are scanned together."""
        self.strays = 0
        """Events of ranks that are not configured, counted here by `indexer.follow.answer`."""
        self.ask: Callable[[AskReplay], None] = lambda _: None
        """Called with a replay to ask for where no received frame is the cause."""
        self.stream = Stream(
            has_replay=source.has_replay,
            is_queue=source.is_queue,
            pending_bytes=pending_bytes,
            stale_after=stale_after,
            now=clock(),
        )
        self._stream_trust = self.stream.trusted
        self._history = TrustHistory(self.trust)
        self.sequence = self.stream.sequence
        """The sequence number of the engine's last applied batch; None before the first.

        The stream's own number grows before the batch is applied: readers in other threads would see it.
        """
        self._blocks_in_use = state.blocks_in_use()
        """The number after the last batch, for the same reason."""
        self.applier = Applier(
            source, state, stream=self.stream, limits=self._limits, lag=self.lag, clock=clock
        )

    @property
    def capacity(self) -> int:
        """Blocks of the fastest tier; 0 where the number is not known."""
        return self.applier.capacity

    @property
    def layout(self) -> Layout:
        """How its cache is divided."""
        return self._groups.layout

    @property
    def trust(self) -> Trust:
        """How far the router's view of this rank may be believed."""
        # Every answer reads the trust of every rank, and few ranks have a limit.
        trust = self._stream_trust.now
        return trust if self._limits.trust is None else self._limits.on(trust)

    @property
    def inexact_since(self) -> float:
        """Since when it is not exact, by the clock of `trust`; of no meaning while it is exact."""
        return self._history.inexact_since(self.trust)

    def known_until(self, now: float) -> float:
        """Return the last moment up to which it shows its engine, as far as its connection tells."""
        return now - self.lag.seconds if self.is_connected else self.lost_at - SILENT_SECONDS

    @property
    def lag_batches(self) -> int:
        """How many batches were received and are not applied yet."""
        return self.lag.batches(self.sequence)

    def received(self, topic: str, sequence: int, *, is_all: bool) -> None:
        """Record the frame that was read from the socket last, as `Lag.received` does."""
        if self._is_ours(topic):
            self.lag.received(sequence, is_all=is_all)

    def overflowed(self, messages: int) -> None:
        """Record that waiting messages were dropped; the gap that they leave is asked for again."""
        self.stream.counts.overflows += 1
        log.warning(
            "pod %s rank %d: its events come faster than they are followed: %d messages were dropped, "
            "as more than events.pending-bytes (%d) waited",
            self.source.pod, self.source.rank, messages, self.pending_bytes,
        )  # fmt: skip

    def limit(self, reason: str, about: str = "") -> None:
        """Degrade the rank for a reason; an empty `reason` lifts the limit with the same `about`."""
        before = self.trust
        self._limits.set(about, reason)
        self._settle(before)

    def engine_restarted(self, reason: str) -> None:
        """Handle a restart of the engine that was seen outside its events: a replay shows if it is true.

        Without a replay endpoint every block is in doubt.
        """
        before = self.trust
        asked = self._act(before, self.stream.suspect(f"restarted: {reason}", self._clock()))
        if asked is not None:
            self.ask(asked)

    def emptied(self, reason: str) -> None:
        """Drop the rank's blocks, as with a clear of its engine."""
        if any(self.blocks().values()):
            log.info("pod %s rank %d: its blocks are dropped: %s", self.pod, self.number, reason)
        self.state.apply([Cleared()])

    def learn_capacity(self, blocks: int) -> None:
        """Set the cache's size in blocks, unless it is configured."""
        if not self.source.capacity:
            self.applier.capacity = blocks
            self.applier.limit_repeated()

    def blocks_in_use(self) -> int | None:
        """Return how many blocks of the fastest tier are in use; None if it has several pools."""
        return self._blocks_in_use

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of the group `Layout.shown` each tier holds."""
        return self.state.blocks()

    def counts(self) -> dict[str, int]:
        """Return the counters of the rank's event stream, by name."""
        stream, resolver = self.stream.counts, self.state.counts
        return {
            "batches": self.applier.batches,
            "stored_blocks": resolver.stored_blocks,
            "removed_blocks": resolver.removed_blocks,
            "clears": resolver.clears,
            "duplicates": stream.duplicates,
            "gaps": stream.gaps,
            "replays": stream.replays,
            "restarts": stream.restarts,
            "malformed": self.applier.malformed,
            "parentless": resolver.parentless,
            "adopted": resolver.adopted,
            "drifts": self.applier.drifts,
            "overflows": stream.overflows,
            "skipped": resolver.other_groups + resolver.unplaced + self.strays,
        }

    def connected(self) -> AskReplay | None:
        """Handle a connection of the live socket; return the replay to ask for, if any."""
        self.lag.begin()
        self.applier.connected()
        before = self.trust
        self.is_connected = True
        self._limits.set(GONE, "")
        return self._act(before, self.stream.connected(self._clock()))

    def disconnected(self) -> None:
        """Handle the loss of the live socket."""
        self._lost(self._clock())

    def failed(self, reason: str) -> None:
        """Drop the rank's view and degrade its trust: a failure may have left a batch half applied."""
        before = self.trust
        now = self._clock()
        self.state.forget()
        self.applier.carry_out(self.stream.missed(reason, now))
        self._lost(now)
        self._settle(before)

    def _lost(self, now: float) -> None:
        if self.is_connected:
            self.lost_at = now
        self.is_connected = False
        self.stream.disconnected(now)

    def tick(self) -> None:
        """Let time pass."""
        before = self.trust
        now = self._clock()
        self.stream.tick(now)
        self._settle(before)
        self.lag.tick(self.sequence, now)
        self._limit_gone(now)
        self._limit_lag()

    def _limit_gone(self, now: float) -> None:
        gone = not self.is_connected and now - self.lost_at > PROMISED_SECONDS - SILENT_SECONDS
        if gone is not (GONE in self._limits.reasons):
            self.limit(GONE if gone else "", GONE)

    def _limit_lag(self) -> None:
        if self.lag.is_behind is not (LAG in self._limits.reasons):
            bound = f"{BEHIND}: more than {self.lag.most_seconds:g} s"
            self.limit(bound if self.lag.is_behind else "", LAG)

    def live(self, topic: str, sequence: int, payload: bytes) -> AskReplay | None:
        """Take a live frame; return the replay to ask for, if any."""
        if not self._is_ours(topic):
            return None
        before = self.trust
        return self._act(before, self.stream.live(sequence, payload, self._clock()))

    def replayed(self, ticket: int, sequence: int, payload: bytes) -> AskReplay | None:
        """Take one frame of a replay's answer; return the replay to ask for next, if any."""
        before = self.trust
        return self._act(before, self.stream.replayed(ticket, sequence, payload, self._clock()))

    def replay_ended(self, ticket: int) -> AskReplay | None:
        """Take the end of a replay's answer; return the replay to ask for next, if any."""
        before = self.trust
        return self._act(before, self.stream.replay_ended(ticket, self._clock()))

    def replay_failed(self, ticket: int, reason: str) -> AskReplay | None:
        """Handle a replay that failed or broke off; return the replay that resumes it, if any."""
        before = self.trust
        return self._act(before, self.stream.replay_failed(ticket, reason, self._clock()))

    def frame_malformed(self, reason: str) -> None:
        """Handle a message that is not a frame; it has no sequence that could show a gap."""
        self.applier.malformed += 1
        log.warning("pod %s rank %d: frame dropped: %s", self.source.pod, self.source.rank, reason)
        before = self.trust
        self.stream.stray(f"a frame is malformed: {reason}", self._clock())
        self._settle(before)

    def answer_lost(self, reason: str) -> None:
        """Handle a fetch whose answer did not arrive: no other answer has the events in it, if any.

        Before the first event nothing is shown that could be wrong.
        """
        if self.sequence is None:
            return
        before = self.trust
        lost = f"an answer did not arrive, and its events are in no other: {reason}"
        self.stream.stray(lost, self._clock())
        self._settle(before)

    def close(self) -> None:
        """Drop all blocks of the rank, and the batches that it holds."""
        self._lost(self._clock())
        self.state.close()

    def save(self) -> SavedRank:
        """Return the state from which a later process goes on."""
        source = self.source
        return SavedRank(
            pod=source.pod,
            rank=source.rank,
            model=source.model,
            capacity=self.capacity,
            stream=self.stream.save(),
            resolver=self.state.save(),
            limit=self._saved_limit(),
        )

    def _saved_limit(self) -> str:
        reasons = self._limits.reasons
        said = "; ".join(reasons[about] for about in SAVED_LIMITS if about in reasons)
        # A reason of the process before may have come again in this one.
        return "; ".join(dict.fromkeys(said.split("; ")))

    def restore(self, saved: SavedRank) -> None:
        """Continue from the state that an earlier process saved, before any frame is taken.

        The rank is stale until it connects.
        """
        self.state.restore(saved.resolver)
        self.stream.restore(saved.stream, self._clock())
        self.applier.capacity = self.capacity or saved.capacity
        self.applier.limit_repeated()
        self._limits.set(BEFORE, saved.limit)
        self._show()

    def _act(self, before: Trust, actions: list[Action]) -> AskReplay | None:
        asked = self.applier.carry_out(actions)
        self._settle(before)
        return asked

    def decoded(self, batch: Batch) -> None:
        """Take a batch that comes decoded, from whoever made or carried the events, as the next one.

        The rank must be connected, and have no replay. Whoever calls this knows when a batch before it
        was `missed`, since these batches have no numbers that could show it.
        """
        before = self.trust
        self.applier.decoded(batch)
        self._settle(before)

    def missed(self, reason: str) -> None:
        """Degrade the trust, as events are known to be missing: the blocks shown may be gone."""
        before = self.trust
        self.applier.carry_out(self.stream.missed(reason, self._clock()))
        self._settle(before)

    def live_many(self, frames: Sequence[tuple[str, int, bytes]]) -> list[AskReplay]:
        """Take live frames in the order in which they came; return the replays to ask for, if any."""
        asked = []
        at = 0
        while at < len(frames):
            run = self._run(frames, at, self._ahead)
            plain = self.state.scan(run) if run else 0
            # Batches after one that cannot be scanned are scanned again: scan only one next.
            self._ahead = min(2 * self._ahead, MOST_AHEAD) if plain and plain == len(run) else 1
            if plain:
                before = self.trust
                self.applier.follow(run[:plain])
                self._settle(before)
                at += plain
            else:
                ask = self.live(*frames[at])
                asked += [ask] if ask else []
                at += 1
        if frames:
            self._time(*frames[-1])
        return asked

    def _time(self, topic: str, sequence: int, payload: bytes) -> None:
        """Measure how late a frame was applied, unless it was held or refused."""
        if sequence == self.sequence and self._is_ours(topic):
            self.lag.followed(timestamp_of(payload), sequence, self._clock())
            self._limit_lag()

    def _is_ours(self, topic: str) -> bool:
        # ZeroMQ matches topics by prefix, so a neighbour's frames arrive too.
        return not self.source.topic or topic == self.source.topic

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

    def lost_room(self) -> None:
        """Lower the trust, as the index gave up keys of the rank to make room."""
        before = self.trust
        self.applier.lack(LOST_ROOM, self._clock())
        self._settle(before)

    def _settle(self, before: Trust) -> None:
        """Show that what has come is applied, and log a change of trust."""
        self._show()
        now = self.trust
        if now != before:
            self._history.note(now)
            log.info(
                "pod %s rank %d: %s, was %s: %s",
                self.source.pod,
                self.source.rank,
                now.level,
                before.level,
                now.reason,
            )

    def _show(self) -> None:
        self.sequence = self.stream.sequence
        self._blocks_in_use = self.state.blocks_in_use()

    def check(self) -> None:
        """Raise BrokenInvariantError where the rank's parts contradict themselves or each other."""
        self.stream.check()
        self.state.check()
        if self.is_connected is not self.stream.is_connected:
            raise BrokenInvariantError("the rank and its stream differ on the connection")
