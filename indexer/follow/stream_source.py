"""One rank's ingestion: frames go in, and the index changes. No sockets; the clock is an argument.

A frame goes through the stream (order), the applier (decoding and trust) and the rank's state (keys in
the index). The caller (`indexer.follow.subscribe`, a recording, a test) passes on the frames that
arrived, and carries out the replay that is asked for in return.
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
from warmpath.indexer.index.orphans import Orphans
from warmpath.indexer.rank import Rank
from warmpath.indexer.resolve.rank_state import RankState
from warmpath.indexer.resolve.saved import SavedResolver
from warmpath.indexer.stream.action import Action, AskReplay
from warmpath.indexer.stream.machine import SavedStream, Stream
from warmpath.indexer.trust import BEHIND, LOST_ROOM, PROMISED_SECONDS

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


class RankIngest(Rank):
    """Keeps the index current with one rank, from the engine's own events.

    Methods that may cause a replay return the one to ask for, if any.
    """

    has_events = True
    logs_reasons = True

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
        self.stream = Stream(
            has_replay=source.has_replay,
            is_queue=source.is_queue,
            pending_bytes=pending_bytes,
            stale_after=stale_after,
            now=clock(),
            believe=self.believe,
        )
        super().__init__(source.pod, source.rank, self.stream.trust, clock)
        self.source = source
        self.pending_bytes = pending_bytes
        """Bytes of live batches that may wait to be followed."""
        self.lag = Lag(lag_seconds)
        self.state = state
        self._ahead = 1
        """How many frames are scanned together."""
        self.strays = 0
        """Events of ranks that are not configured, counted here by `indexer.follow.answer`."""
        self.ask: Callable[[AskReplay], None] = lambda _: None
        """Called with a replay to ask for where no received frame is the cause."""
        self.applier = Applier(
            source, state, stream=self.stream, restrict=self.restrict, lag=self.lag, clock=clock
        )
        self._show_applied()

    @property
    def capacity(self) -> int:
        return self.applier.capacity

    @property
    def layout(self) -> Layout:
        return self.state.groups.layout

    @layout.setter
    def layout(self, layout: Layout) -> None:
        # Readers in other threads find a group's blocks never before its layout: it stays where it is.
        del layout

    @property
    def lag_seconds(self) -> float:
        return self.lag.seconds

    def known_until(self, now: float) -> float:
        """Return up to when it shows its engine, as far as its connection lets it know."""
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

    def received(self, topic: str, sequence: int, *, is_all: bool) -> None:
        if self._is_ours(topic):
            self.lag.received(sequence, is_all=is_all)

    def overflowed(self, messages: int) -> None:
        self.stream.counts.overflows += 1
        log.warning(
            "pod %s rank %d: its events come faster than they are followed: %d messages were dropped, "
            "as more than %d bytes waited",
            self.source.pod, self.source.rank, messages, self.pending_bytes,
        )  # fmt: skip

    def engine_restarted(self, reason: str) -> None:
        """Handle a restart of the engine that was seen outside its events: a replay shows if it is true.

        Without a replay endpoint every block is in doubt.
        """
        asked = self._act(self.stream.suspect(f"restarted: {reason}", self._clock()))
        if asked is not None:
            self.ask(asked)

    def emptied(self, reason: str) -> None:
        if any(self.blocks().values()):
            log.info("pod %s rank %d: its blocks are dropped: %s", self.pod, self.number, reason)
        self.state.apply([Cleared()])

    def learn_capacity(self, blocks: int) -> None:
        if not self.source.capacity:
            self.applier.capacity = blocks
            self.applier.limit_repeated()

    def blocks(self) -> Mapping[Tier, int]:
        return self.state.blocks()

    def counts(self) -> dict[str, int]:
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
        self.lag.begin()
        self.applier.connected()
        self.is_connected = True
        self.restrict(GONE, "")
        return self._act(self.stream.connected(self._clock()))

    def disconnected(self) -> None:
        self._lost(self._clock())

    def failed(self, reason: str) -> None:
        """Drop the rank's view and degrade its trust: a failure may have left a batch half applied."""
        now = self._clock()
        self.state.forget()
        self.applier.carry_out(self.stream.missed(reason, now))
        self._lost(now)
        self.settle()

    def _lost(self, now: float) -> None:
        if self.is_connected:
            self.lost_at = now
        self.is_connected = False
        self.stream.disconnected(now)

    def tick(self) -> None:
        now = self._clock()
        self.stream.tick(now)
        self.settle()
        self.lag.tick(self.sequence, now)
        gone = not self.is_connected and now - self.lost_at > PROMISED_SECONDS - SILENT_SECONDS
        if gone is not (GONE in self._limits):
            self.limit(GONE if gone else "", GONE)
        self._limit_lag()

    def _limit_lag(self) -> None:
        if self.lag.is_behind is not (LAG in self._limits):
            bound = f"{BEHIND}: more than {self.lag.most_seconds:g} s"
            self.limit(bound if self.lag.is_behind else "", LAG)

    def live(self, topic: str, sequence: int, payload: bytes) -> AskReplay | None:
        if not self._is_ours(topic):
            return None
        return self._act(self.stream.live(sequence, payload, self._clock()))

    def replayed(self, ticket: int, sequence: int, payload: bytes) -> AskReplay | None:
        return self._act(self.stream.replayed(ticket, sequence, payload, self._clock()))

    def replay_ended(self, ticket: int) -> AskReplay | None:
        return self._act(self.stream.replay_ended(ticket, self._clock()))

    def replay_failed(self, ticket: int, reason: str) -> AskReplay | None:
        return self._act(self.stream.replay_failed(ticket, reason, self._clock()))

    def frame_malformed(self, reason: str) -> None:
        """Handle a message that is not a frame; it has no sequence that could show a gap."""
        self.applier.malformed += 1
        log.warning("pod %s rank %d: frame dropped: %s", self.source.pod, self.source.rank, reason)
        self.stream.stray(f"a frame is malformed: {reason}", self._clock())
        self.settle()

    def answer_lost(self, reason: str) -> None:
        """Handle a fetch whose answer did not arrive: no other answer has the events in it, if any.

        Before the first event nothing is shown that could be wrong.
        """
        if self.sequence is None:
            return
        lost = f"an answer did not arrive, and its events are in no other: {reason}"
        self.stream.stray(lost, self._clock())
        self.settle()

    def close(self) -> None:
        self._lost(self._clock())
        self.state.close()

    def save(self) -> SavedRank:
        source, limits = self.source, self._limits
        said = "; ".join(limits[about] for about in SAVED_LIMITS if about in limits)
        return SavedRank(
            pod=source.pod,
            rank=source.rank,
            model=source.model,
            capacity=self.capacity,
            stream=self.stream.save(),
            resolver=self.state.save(),
            # A reason of the process before may have come again in this one.
            limit="; ".join(dict.fromkeys(said.split("; "))),
        )

    def restore(self, saved: SavedRank) -> None:
        """Continue from the state that an earlier process saved, before any frame is taken.

        The rank is stale until it connects.
        """
        self.state.restore(saved.resolver)
        self.stream.restore(saved.stream, self._clock())
        self.applier.capacity = self.capacity or saved.capacity
        self.applier.limit_repeated()
        self.restrict(BEFORE, saved.limit)
        self._show_applied()
        self._logged = self.trust

    def _act(self, actions: list[Action]) -> AskReplay | None:
        asked = self.applier.carry_out(actions)
        self.settle()
        return asked

    def decoded(self, batch: Batch) -> None:
        """Take a batch that comes decoded, from whoever made or carried the events, as the next one.

        The rank must be connected, and have no replay. Whoever calls this knows when a batch before it
        was `missed`, since these batches have no numbers that could show it.
        """
        self.applier.decoded(batch)
        self.settle()

    def missed(self, reason: str) -> None:
        """Degrade the trust, as events are known to be missing: the blocks shown may be gone."""
        self._act(self.stream.missed(reason, self._clock()))

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
                self.applier.follow(run[:plain])
                self.settle()
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
        self.applier.lack(LOST_ROOM, self._clock())
        self.settle()

    def settle(self) -> None:
        self._show_applied()
        super().settle()

    def _show_applied(self) -> None:
        # The stream's own number grows before the batch is applied: other threads would see it.
        self.sequence = self.stream.sequence
        self._blocks_in_use = self.state.blocks_in_use()
