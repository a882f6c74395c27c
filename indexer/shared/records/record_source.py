"""A rank in shared mode: its record in Redis tells its trust; each prompt asks for its blocks."""

import logging
import math
from collections.abc import Callable, Mapping

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.rank import Rank
from warmpath.indexer.shared.records.registry import (
    AWAY,
    LATE,
    UNCONFIRMED,
    UNREAD,
    Registry,
    refusal,
)
from warmpath.indexer.trust import Level, Trust
from warmpath.indexer.watch.watched_source import figures_of
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

log = logging.getLogger(__name__)


class RemoteRank(Rank):
    """A rank whose trust comes from its pod's record in Redis.

    An answer may have a doubt of its own, which lowers the trust (`in_answer`); outside of answers
    `doubt` sets one, while parts of Redis are left alone.

    `keyspace` is the fingerprint of the router's keys, `ranks` the number of ranks that the pod is
    configured to have. While the record cannot be read the rank is degraded, and stale once the last
    reading is `stale_after` seconds old.
    """

    has_events = True
    is_remote = True

    def __init__(
        self,
        pod: str,
        number: int,
        registry: Registry,
        *,
        keyspace: str,
        ranks: int,
        stale_after: float,
        close: Callable[["RemoteRank"], None],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(pod, number, UNREAD, clock)
        self.recorded = self.trust
        """The trust by the pod's record alone, whether or not Redis can be asked for the blocks."""
        # A record that is not there, as after Redis lost its data, says nothing of the engine.
        self.lost_at = -math.inf
        self._registry = registry
        self._keyspace = keyspace
        self._ranks = ranks
        self._stale_after = stale_after
        self._close = close
        self._doubt: Trust | None = None
        self._state: pb.RankState | None = None
        self.refused = ""
        """Why this router cannot use the rank's blocks, as last logged; empty where it can."""

    def doubt(self, doubt: Trust | None) -> None:
        self._doubt = doubt
        self.believe(self._with(doubt))

    def in_answer(self, doubt: Trust | None) -> Trust:
        """Return the trust for an answer; `doubt` is the answer's own, None for none."""
        return self.limited(self._with(doubt))

    def _with(self, doubt: Trust | None) -> Trust:
        said = self.recorded
        return said if doubt is None or said.level in {Level.COLD, Level.STALE} else doubt

    def record_read(self, problem: str) -> None:
        """Take the record as last read; `problem` says why that failed this time, else is empty.

        If the index does not answer, or nobody confirms the record any more, nothing is learnt about the
        engine: `is_connected` stays.
        """
        reading = self._registry.reading(self.pod)
        record = reading.record
        state = record.states.get(self.number) if record and record.claim else None
        if state is not self._state:
            self._state = state
            figures = figures_of(state) if state is not None else (self.layout, None, 0, None)
            self.take_figures(*figures)
        claim = record.claim if record else None
        refused = refusal(claim, self._keyspace, self._ranks) if claim else ""
        level, reason = (Level.COLD, refused) if refused else self._believed(problem)
        before = self.recorded
        if (level, reason) != (before.level, before.reason):
            # Each attempt may change the reason; `since` stays, as the level was the same all the time.
            since = before.since if level is before.level else self._clock()
            self.recorded = Trust(level, reason, since)
            self.lost_at = -math.inf if level is Level.COLD else since
            if level is before.level is Level.COLD and not refused:
                self._log_cold(before.reason)
        self.doubt(self._doubt)
        self.settle()
        # Rank 0 logs for all of its pod's ranks.
        if refused and refused != self.refused and self.number == 0:
            log.warning("pod %s: %s", self.pod, refused)
        self.refused = refused
        if not problem and (level, reason) != (Level.STALE, LATE):
            is_read = reading.read_at is not None
            self.is_connected = is_read and level not in {Level.STALE, Level.COLD}

    def _log_cold(self, before: str) -> None:
        """Log why the pod is cold, once for each kind of reason; rank 0 logs for all of its ranks."""
        reason = self.recorded.reason
        if self.number == 0 and reason.partition(":")[0] != before.partition(":")[0]:
            is_fault = reason.startswith(AWAY)
            log.log(logging.WARNING if is_fault else logging.INFO, "pod %s: %s", self.pod, reason)

    def _believed(self, problem: str) -> tuple[Level, str]:
        level, reason = self._registry.trust_of(self.pod, self.number)
        if level is Level.COLD:
            return level, reason
        reading, now = self._registry.reading(self.pod), self._clock()
        if (
            reading.problem
            and reading.read_at is not None
            and now - reading.read_at >= self._stale_after
        ):
            return Level.STALE, reading.problem
        if reason == LATE and -math.inf < reading.moment.at <= now - self._stale_after:
            return Level.STALE, LATE
        problem = reading.problem or problem
        if problem and (level is Level.EXACT or reason in {UNCONFIRMED, LATE}):
            return Level.DEGRADED, problem
        return level, reason

    def blocks(self) -> Mapping[Tier, int]:
        record = self._registry.reading(self.pod).record
        if record is None or self.recorded.level is Level.COLD:
            return {}
        return record.blocks.get(self.number, {})

    def close(self) -> None:
        self._close(self)
