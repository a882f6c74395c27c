"""A rank that is known by its record in the shared index; its blocks are looked up prompt by prompt."""

import logging
import math
from collections.abc import Callable, Mapping

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.record import Record
from warmpath.indexer.shared.records.registry import (
    AWAY,
    LATE,
    UNCONFIRMED,
    UNREAD,
    Registry,
    refusal,
)
from warmpath.indexer.trust import EMPTIED, Level, Trust, TrustHistory, TrustLimits
from warmpath.indexer.watch.watched_source import blocks_in_use_of, layout_of
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

log = logging.getLogger(__name__)


class RemoteRank:
    """A rank whose trust comes from its pod's record in Redis.

    An answer may have a doubt of its own, which lowers the trust (`in_answer`). Outside of answers
    `trouble` lowers it: it returns a doubt while parts of Redis are left alone, else None.

    `keyspace` is the fingerprint of the router's keys, `ranks` the number of ranks that the pod is
    configured to have. While the record cannot be read the rank is degraded, and stale once the last
    reading is `stale_after` seconds old.
    """

    def __init__(
        self,
        pod: str,
        number: int,
        registry: Registry,
        *,
        keyspace: str,
        ranks: int,
        stale_after: float,
        trouble: Callable[[], Trust | None],
        close: Callable[["RemoteRank"], None],
        clock: Callable[[], float],
    ) -> None:
        self.pod = pod
        self.number = number
        self.layout = Layout()
        self.recorded = Trust(Level.COLD, UNREAD, clock())
        """The trust by its record alone, whether or not Redis can be asked for its blocks."""
        self._history = TrustHistory(self.recorded)
        self.is_connected = False
        """Whether the engine's events reached the index when the record was last read."""
        self._registry = registry
        self._keyspace = keyspace
        self._ranks = ranks
        self._stale_after = stale_after
        self._trouble = trouble
        self._close = close
        self._clock = clock
        self._limits = TrustLimits(clock)
        self._state: pb.RankState | None = None
        self._learnt = 0
        self._emptied_at: int | None = None
        """`sequence` when the engine was last found to have dropped its cache."""
        """How many blocks its fastest tier has, by its engine; 0: not known."""
        self._problem = ""
        self._logged = ""
        """The reason for which the rank cannot be used, as last logged; empty where it can."""

    @property
    def trust(self) -> Trust:
        """How far the rank may be believed outside of answers: by its record and `trouble`."""
        return self.in_answer(self._trouble())

    @property
    def inexact_since(self) -> float:
        """Since when it is not exact, by the clock of `trust`; of no meaning while it is exact."""
        return self._history.inexact_since(self.trust)

    @property
    def lost_at(self) -> float:
        """Since when its events do not reach the index; of no meaning while they do.

        A record that is not there, as after Redis lost its data, says nothing of the engine.
        """
        recorded = self.recorded
        return -math.inf if recorded.level is Level.COLD else recorded.since

    def in_answer(self, doubt: Trust | None) -> Trust:
        """Return the trust in this rank for an answer; `doubt` is the answer's own, None without."""
        said = self.recorded
        if doubt is None or said.level in {Level.COLD, Level.STALE}:
            return self._limits.on(said)
        return doubt

    @property
    def sequence(self) -> int | None:
        """The number of the engine's last batch that was applied; None before the first."""
        state = self._state
        return state.engine_sequence if state and state.HasField("engine_sequence") else None

    @property
    def capacity(self) -> int:
        """How many blocks its fastest tier has, by its publisher or else its engine; 0: not known."""
        return (self._state.capacity if self._state else 0) or self._learnt

    def blocks_in_use(self) -> int | None:
        """Return how many blocks of its fastest tier are in use; None if its publisher does not say."""
        return blocks_in_use_of(self._state) if self._state else None

    def record_read(self, problem: str) -> None:
        """Take the record as last read; `problem` says why that failed this time, else is empty.

        If the index does not answer, or nobody confirms the record any more, nothing is learnt about the
        engine: `is_connected` stays.
        """
        self._problem = problem
        self._take_record()
        recorded = self.recorded
        if not problem and (recorded.level, recorded.reason) != (Level.STALE, LATE):
            is_read = self._registry.read_at(self.pod) is not None
            self.is_connected = is_read and recorded.level not in {Level.STALE, Level.COLD}

    def _take_record(self) -> None:
        """Update the layout and the trust, by the record and by the time since it was read."""
        record = self._registry.record(self.pod)
        state = record.states.get(self.number) if record and record.claim else None
        if state is not self._state:
            self._state = state
            if state is not None:
                self.layout = layout_of(state)
            if self.sequence != self._emptied_at:
                self.limit("", EMPTIED)
        level, reason = self._believed(record)
        before = self.recorded
        if (level, reason) != (before.level, before.reason):
            # Each attempt may change the reason; `since` stays, as the level was the same all the time.
            since = before.since if level is before.level else self._clock()
            self.recorded = Trust(level, reason, since)
            if level is before.level is Level.COLD:
                self._log_cold(before.reason, record)
        self._note_trust()
        self._log_refused(record)

    def _note_trust(self) -> None:
        """Log a change of the level, whether the record or `trouble` changed it."""
        if change := self._history.note(self.trust):
            log.info("pod %s rank %d: %s", self.pod, self.number, change)

    def _log_cold(self, before: str, record: Record | None) -> None:
        """Log why the pod is cold, once for each kind of reason; rank 0 logs for all of its ranks."""
        reason = self.recorded.reason
        is_new = reason.partition(":")[0] != before.partition(":")[0]
        if is_new and self.number == 0 and reason != self._refusal(record):
            is_fault = reason.startswith(AWAY)
            log.log(logging.WARNING if is_fault else logging.INFO, "pod %s: %s", self.pod, reason)

    def _log_refused(self, record: Record | None) -> None:
        """Log once why the pod's blocks cannot be used; rank 0 logs for all of its ranks."""
        refused = self._refusal(record)
        if refused and refused != self._logged and self.number == 0:
            log.warning("pod %s: %s", self.pod, refused)
        self._logged = refused

    def _refusal(self, record: Record | None) -> str:
        claim = record.claim if record else None
        return refusal(claim, self._keyspace, self._ranks) if claim else ""

    def _believed(self, record: Record | None) -> tuple[Level, str]:
        if refused := self._refusal(record):
            return Level.COLD, refused
        level, reason = self._registry.trust_of(self.pod, self.number)
        if level is Level.COLD:
            return level, reason
        problem = self._registry.problem(self.pod)
        read_at = self._registry.read_at(self.pod)
        if problem and read_at is not None and self._clock() - read_at >= self._stale_after:
            return Level.STALE, problem
        moment = self._registry.moment(self.pod)
        if reason == LATE and -math.inf < moment <= self._clock() - self._stale_after:
            return Level.STALE, LATE
        problem = problem or self._problem
        if problem and (level is Level.EXACT or reason in {UNCONFIRMED, LATE}):
            return Level.DEGRADED, problem
        return level, reason

    @property
    def refused(self) -> bool:
        """Whether this router cannot use the rank's blocks: keyspaces or numbers of ranks differ."""
        return bool(self._refusal(self._registry.record(self.pod)))

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of the group `Layout.shown` each tier holds."""
        record = self._registry.record(self.pod)
        if record is None or self.recorded.level is Level.COLD:
            return {}
        return record.blocks.get(self.number, {})

    def learn_capacity(self, blocks: int) -> None:
        """Take the capacity that the engine says, for as long as the publisher says none."""
        self._learnt = blocks

    def engine_restarted(self, reason: str) -> None:
        """Do nothing: the publisher follows the engine."""

    def emptied(self, reason: str) -> None:
        """Degrade the rank until its engine's next batch, with which the publisher drops its blocks."""
        self._emptied_at = self.sequence
        self.limit(reason, EMPTIED)

    def limit(self, reason: str, about: str = "") -> None:
        """Make the rank degraded for a reason; an empty reason ends this, for the same `about`."""
        self._limits.set(about, reason)

    def counts(self) -> Mapping[str, int]:
        """Return nothing: the publisher counts what happens to the engine's stream."""
        return {}

    def tick(self) -> None:
        """Do nothing: this is called in another thread, and `record_read` looks at the time."""

    def lost_room(self) -> None:
        """Do nothing: none of its keys lie in this router's index."""

    def close(self) -> None:
        """Stop reading the rank."""
        self._close(self)

    def check(self) -> None:
        """Do nothing: the rank has no tables that could disagree."""
