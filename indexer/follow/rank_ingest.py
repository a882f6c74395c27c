"""One rank's ingestion: frames in, changes out. No sockets; a clock is an argument.

Wires codec → stream → resolver → sink. Whoever has the sockets (`indexer.follow.subscribe`, a recording,
a test) hands over what arrived and carries out the replay that is asked for in return.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec

from indexer.engines.cache_groups import Layout
from indexer.engines.event import MalformedEventError, Tier, Unread
from indexer.engines.wire import timestamp_of
from indexer.follow.lag import Lag
from indexer.follow.rank_source import RankSource
from indexer.index.orphans import Orphans
from indexer.invariant import BrokenInvariantError
from indexer.limits import Limits
from indexer.resolve.rank_state import RankState
from indexer.resolve.saved import SavedResolver
from indexer.stream.action import Action, Apply, AskReplay, Doubt, Reset
from indexer.stream.machine import SavedStream, Stream
from indexer.trust import BEHIND, DRIFTED, LOST_ROOM, Trust

log = logging.getLogger(__name__)

ORPHAN_BYTES = 16 << 20
"""Bytes a rank of stores that wait for their parent."""

TWICE = (
    "a block was stored twice: the cache has namespaces that events do not tell, as an extra_key's"
)
"""The reason where an engine that keeps each block once stores one again."""

REPEATED = (
    "a block was announced again before it was removed, perhaps for a hit: without the cache's size "
    "(blocks) nothing tells whether a copy is left"
)
"""The reason where hits may have been announced as stores, and nothing could show it."""

HITS = "hits"
"""The subject of a limit: stores that may have been hits."""

NAMESPACES, COPIES, BEFORE = "namespaces", "copies", "before"
"""Subjects of limits that are saved: what sets requests apart that come, a block stored twice, and what
another process knew of both."""

LAG = "lag"
"""The subject of a limit: events that are followed late."""

OTHER_RANK = "other rank"
"""The subject of a limit: events that say that they are another rank's."""

LAG_SECONDS = 2.0
"""How late events may be followed while the rank is exact."""

MOST_AHEAD = 256
"""Frames that are scanned together, at most."""

Clock = Callable[[], float]
"""Seconds; the same clock for all times of one process."""


class SavedRank(msgspec.Struct, frozen=True):
    """One rank's ingestion, for a process that is to go on."""

    pod: str
    rank: int
    model: str
    capacity: int
    stream: SavedStream
    resolver: SavedResolver
    limit: str = ""
    """Why it is degraded at best for as long as the engine lives."""


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
        self.capacity = source.capacity
        self.batches = 0
        self.malformed = 0
        self.drifts = 0
        """How often more was announced than the cache holds."""
        self._clock = clock
        self.state = state
        self._limits = Limits(clock)
        self._is_rank_said = source.said_rank is None
        """Whether it is known which rank the batches of this connection are of."""
        self._ahead = 1
        """How many frames are scanned together."""
        self.ask: Callable[[AskReplay], None] = lambda _: None
        """Takes the replays that are asked for without a frame that arrived."""
        self.stream = Stream(
            has_replay=source.has_replay,
            is_queue=source.is_queue,
            pending_bytes=pending_bytes,
            stale_after=stale_after,
            now=clock(),
        )

    @property
    def layout(self) -> Layout:
        """How its cache is divided."""
        return self.state.layout

    @property
    def orphans(self) -> Orphans:
        """The stores that wait for a parent that is not known."""
        return self.state.orphans

    @property
    def sequence(self) -> int | None:
        """The engine's last applied batch; None before the first."""
        return self.stream.sequence

    @property
    def trust(self) -> Trust:
        """How far what the index holds of this rank may be believed."""
        return self._limits.on(self.stream.trust)

    @property
    def lag_batches(self) -> int:
        """How many batches were received and not followed yet."""
        return self.lag.batches(self.sequence)

    def received(self, topic: str, sequence: int, *, is_all: bool) -> None:
        """Take note of the frame that was read from the socket last, as `Lag.received` does."""
        if self._is_ours(topic):
            self.lag.received(sequence, is_all=is_all)

    def overflowed(self, messages: int) -> None:
        """Take note that so many waited for longer than there was room; the gap is asked for again."""
        self.stream.counts.overflows += 1
        log.warning(
            "pod %s rank %d: its events come faster than they are followed: %d messages let go, as more "
            "than events.pending-bytes (%d) waited",
            self.source.pod, self.source.rank, messages, self.pending_bytes,
        )  # fmt: skip

    def limit(self, reason: str, about: str = "") -> None:
        """Let the rank be degraded at best, for a reason; with an empty one no longer."""
        before = self.trust
        self._limits.set(about, reason)
        self._log(before)

    def engine_restarted(self, reason: str) -> None:
        """Doubt what is known, as somebody saw the engine begin anew; a replay says what is true."""
        before = self.trust
        asked = self._act(before, self.stream.suspect(f"restarted: {reason}", self._clock()))
        if asked is not None:
            self.ask(asked)

    def learn_capacity(self, blocks: int) -> None:
        """Take note of the cache's size, where nobody has configured it."""
        if not self.source.capacity:
            self.capacity = blocks
            self._tell_repeated()

    def copies(self) -> int | None:
        """Return how many blocks of the fastest tier are taken; None where there are several pools."""
        return self.state.copies()

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of a prompt's prefix each tier holds."""
        return self.state.blocks()

    def counts(self) -> dict[str, int]:
        """Return what happened to the stream so far, by kind of happening."""
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
            "skipped": resolver.other_groups + resolver.unplaced,
        }

    def connected(self) -> AskReplay | None:
        """Take note that the live socket is connected; return the replay to ask for, if any."""
        self.lag.begin()
        self._is_rank_said = self.source.said_rank is None
        before = self.trust
        self.is_connected = True
        return self._act(before, self.stream.connected(self._clock()))

    def disconnected(self) -> None:
        """Take note that the live socket is gone."""
        self.is_connected = False
        self.stream.disconnected(self._clock())

    def failed(self, reason: str) -> None:
        """Hold nothing and doubt the rest, as following has failed: what is known may be in pieces."""
        before = self.trust
        now = self._clock()
        self.state.forget()
        self._carry_out(self.stream.missed(reason, now))
        self.is_connected = False
        self.stream.disconnected(now)
        self._log(before)

    def tick(self) -> None:
        """Let time pass."""
        before = self.trust
        now = self._clock()
        self.stream.tick(now)
        self._log(before)
        self.lag.tick(self.sequence, now)
        self._tell_lag()

    def _tell_lag(self) -> None:
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
        """Take one frame of a replay's answer."""
        before = self.trust
        return self._act(before, self.stream.replayed(ticket, sequence, payload, self._clock()))

    def replay_ended(self, ticket: int) -> AskReplay | None:
        """Take the end of a replay's answer."""
        before = self.trust
        return self._act(before, self.stream.replay_ended(ticket, self._clock()))

    def replay_failed(self, ticket: int, reason: str) -> AskReplay | None:
        """Take note that a replay was not answered to its end; return the one that resumes it."""
        before = self.trust
        return self._act(before, self.stream.replay_failed(ticket, reason, self._clock()))

    def frame_malformed(self, reason: str) -> None:
        """Take note of a message that is not even a frame; it has no sequence to miss."""
        self.malformed += 1
        log.warning("pod %s rank %d: frame dropped: %s", self.source.pod, self.source.rank, reason)
        before = self.trust
        self.stream.stray(f"a frame is malformed: {reason}", self._clock())
        self._log(before)

    def close(self) -> None:
        """Let the rank hold nothing."""
        self.state.close()

    def save(self) -> SavedRank:
        """Return what a later process needs to go on from here."""
        source = self.source
        return SavedRank(
            pod=source.pod,
            rank=source.rank,
            model=source.model,
            capacity=self.capacity,
            stream=self.stream.save(),
            resolver=self.state.save(),
            limit="; ".join(
                self._limits.reasons[about]
                for about in (NAMESPACES, COPIES, BEFORE)
                if about in self._limits.reasons
            ),
        )

    def restore(self, saved: SavedRank) -> None:
        """Go on from what another process saved; nothing may have been taken before."""
        self.state.restore(saved.resolver)
        self.stream.restore(saved.stream, self._clock())
        self.capacity = self.capacity or saved.capacity
        self._tell_repeated()
        self._limits.set(BEFORE, saved.limit)

    def _act(self, before: Trust, actions: list[Action]) -> AskReplay | None:
        asked = self._carry_out(actions)
        self._log(before)
        return asked

    def _carry_out(self, actions: list[Action]) -> AskReplay | None:
        asked = None
        for action in actions:
            if isinstance(action, Apply):
                self._apply(action)
            elif isinstance(action, Reset):
                self.state.forget()
                self.lag.begin()
                for about in (COPIES, BEFORE, HITS):
                    self._limits.set(about, "")
            elif isinstance(action, Doubt):
                self.state.doubt()
            else:
                asked = action
        return asked

    def _apply(self, action: Apply) -> None:
        self.batches += 1
        now = self._clock()
        if not self._is_rank_said:
            self._compare_rank(action.payload)
        if self.state.scan((action.payload,)):
            self._apply_scanned(now)
            return
        try:
            batch = self.source.decode(action.payload)
        except MalformedEventError as error:
            self.malformed += 1
            self._carry_out(self.stream.malformed(str(error), now))
            return
        self.capacity = batch.capacity or self.capacity
        counts = self.state.counts
        clears, parentless = counts.clears, counts.parentless
        self.state.apply(batch.events)
        if counts.clears > clears:
            self.stream.cleared(action.sequence, now)
        for event in batch.unread:
            self._pass_over(event, action.sequence, now)
        self._judge(parentless, now)

    def _compare_rank(self, payload: bytes) -> None:
        """Limit the trust where a batch says that it is another rank's."""
        try:
            said = self.source.decode(payload).rank
        except MalformedEventError:
            return
        self._is_rank_said = True
        own = self.source.said_rank
        other = f"its events are of the engine's rank {said} and are followed as rank {own}"
        self._limits.set(OTHER_RANK, "" if said is None or said == own else other)

    def _pass_over(self, event: Unread, sequence: int, now: float) -> None:
        """Take note that one event of a batch could not be read."""
        self.malformed += 1
        lost = f"{event.kind or 'an event'} of batch {sequence} cannot be read ({event.reason})"
        if event.is_store:
            self._lack(f"{lost}: what it stored is missing", now)
        else:
            self._carry_out(self.stream.missed(f"{lost}: what is gone may be shown", now))

    def _lack(self, reason: str, now: float) -> None:
        self.state.lost_room()
        self.stream.lacks(reason, now)

    def _apply_scanned(self, now: float) -> None:
        is_left = True
        while is_left:
            parentless = self.state.counts.parentless
            heals = self.stream.can_heal
            is_left = self.state.apply_scanned(self.capacity, heals=heals)
            self._judge(parentless, now)

    def _judge(self, parentless: int, now: float) -> None:
        """Draw what follows for the trust, given how many blocks had no known parent before."""
        if self.state.counts.again:
            self.state.counts.again = 0
            self._limits.set(COPIES, TWICE)
        if self.state.counts.parentless > parentless and not self.stream.is_damaged:
            reason = "a stored block's parent is unknown: an event was missed"
            self._carry_out(self.stream.missed(reason, now))
        elif self.stream.can_heal and self.state.can_settle(self.capacity):
            self.state.settle()
            self.stream.turned_over(now)
        self._measure(now)
        self._tell_repeated()

    def _tell_repeated(self) -> None:
        """Limit the trust for stores that may have been hits, where the cache's size is not known."""
        is_unsure = not self.capacity and self.state.may_show_hits()
        self._limits.set(HITS, REPEATED if is_unsure else "")

    def _measure(self, now: float) -> None:
        """Give up what is too much, where more was announced than the cache can hold."""
        copies = self.copies()
        if copies is None or not 0 < self.capacity < copies:
            return
        self.drifts += 1
        self.state.give_up_excess()
        self.stream.lacks(f"{DRIFTED}: {copies} of {self.capacity}", now)

    def live_many(self, frames: Sequence[tuple[str, int, bytes]]) -> list[AskReplay]:
        """Take live frames in the order in which they came; return the replays to ask for, if any."""
        asked = []
        at = 0
        while at < len(frames):
            run = self._run(frames, at, self._ahead)
            plain = self.state.scan(run) if run else 0
            # What is behind a batch that is not plain is scanned again, so not much is then.
            self._ahead = min(2 * self._ahead, MOST_AHEAD) if plain and plain == len(run) else 1
            if plain:
                self._follow(run[:plain])
                at += plain
            else:
                ask = self.live(*frames[at])
                asked += [ask] if ask else []
                at += 1
        if frames:
            self._time(*frames[-1])
        return asked

    def _time(self, topic: str, sequence: int, payload: bytes) -> None:
        """Tell how late a frame was followed, unless it was held or refused."""
        if sequence == self.sequence and self._is_ours(topic):
            self.lag.followed(timestamp_of(payload), sequence, self._clock())
            self._tell_lag()

    def _is_ours(self, topic: str) -> bool:
        # ZeroMQ matches topics by prefix, so a neighbour's frames arrive too.
        return not self.source.topic or topic == self.source.topic

    def _run(self, frames: Sequence[tuple[str, int, bytes]], start: int, most: int) -> list[bytes]:
        """Return the payloads of at most so many frames from `start` on, as far as next in order."""
        topic = self.source.topic
        sequence = self.stream.expected
        run: list[bytes] = []
        for said, number, payload in islice(frames, start, start + most):
            if number != sequence or (topic and said != topic):
                break
            run.append(payload)
            sequence += 1
        return run

    def _follow(self, payloads: Sequence[bytes]) -> None:
        """Follow batches that are next in order and were scanned."""
        before = self.trust
        now = self._clock()
        if not self._is_rank_said:
            self._compare_rank(payloads[0])
        self.stream.follow(payloads, now)
        self.batches += len(payloads)
        self._apply_scanned(now)
        self._log(before)

    def lost_room(self) -> None:
        """Take note that the index gave up keys of the rank for want of room."""
        before = self.trust
        self._lack(LOST_ROOM, self._clock())
        self._log(before)

    def _log(self, before: Trust) -> None:
        now = self.trust
        if now != before:
            log.info(
                "pod %s rank %d: %s, was %s: %s",
                self.source.pod,
                self.source.rank,
                now.level,
                before.level,
                now.reason,
            )

    def check(self) -> None:
        """Raise BrokenInvariantError where the index holds other keys than the rank's live names."""
        self.stream.check()
        self.state.check()
        if self.is_connected is not self.stream.is_connected:
            raise BrokenInvariantError("the rank and its stream differ on the connection")
