"""Trust: how far the router's view of a rank may be believed, with a reason and a time.

These files decide it: `indexer.stream.trust` for an engine's own stream, `indexer.watch.watched_source`
for a publisher over gRPC, `indexer.shared.records.record_source` for a record in Redis, to which
`indexer.shared.query.index` adds a doubt for each answer in shared mode.

Lowers an exact rank to degraded for reasons outside its event stream, such as an engine's version.

`indexer.trust` names the files that decide the trust before that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock


class Level(StrEnum):
    """The four levels of trust."""

    COLD = "cold"
    """Nothing is known: no event was seen yet, the engine restarted, or no record in Redis is usable."""
    EXACT = "exact"
    """Complete since the engine's start or a clear, or complete again after a gap was closed."""
    DEGRADED = "degraded"
    """Events were missed: blocks may be missing from the view, or already evicted."""
    STALE = "stale"
    """The event stream has ended; the present cache is not known."""


PROMISED_SECONDS = 3.0
"""An answer that is called exact shows the engine's cache as it was at a moment of the last 3 s."""

MOST_REASON = 400
"""The most characters of a reason that a peer gives."""

LOST_ROOM = "index.max-bytes is reached: some blocks were given up"
"""The reason if the index dropped keys of the rank to make room."""

BEHIND = "its events are followed late"
"""Beginning of the reason if events arrive faster than they are applied, or arrive late."""

DRIFTED = "more blocks were announced than the cache has"
"""Beginning of the reason if the announced blocks cannot all be in the engine's cache."""


@dataclass(frozen=True, slots=True)
class Trust:
    """A level, its reason in words, and since when (seconds, the ingest's clock)."""

    level: Level
    reason: str
    since: float


class TrustHistory:
    """What came before a rank's present trust: the last level, and when the rank stopped being exact."""

    def __init__(self, trust: Trust) -> None:
        self._level = trust.level
        self._inexact_since = trust.since

    def note(self, trust: Trust) -> str:
        """Take the present trust; return a change of the level in words, else an empty text."""
        before, self._level = self._level, trust.level
        if before is Level.EXACT:
            self._inexact_since = trust.since
        return f"{trust.level}, was {before}: {trust.reason}" if trust.level is not before else ""

    def inexact_since(self, trust: Trust) -> float:
        """Return since when the rank is not exact, at whichever level; `trust` is its present one."""
        return trust.since if Level.EXACT in {self._level, trust.level} else self._inexact_since


EMPTIED = "emptied"
"""The subject of a limit: a cache that the engine has dropped, which no event has said yet."""


class TrustLimits:
    """The reasons for limits, by subject; while there is any, an exact rank counts as degraded.

    Thread-safe. `clock` is the ingest's, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.reasons: Mapping[str, str] = {}
        self._clock = clock
        self.trust: Trust | None = None
        """The trust in place of an exact one; None without reasons."""
        self._lock = Lock()

    def set(self, about: str, reason: str) -> None:
        """Set the reason of one subject; an empty one lifts that limit."""
        if self.reasons.get(about, "") == reason:
            return
        with self._lock:
            reasons = {**self.reasons, about: reason}
            self.reasons = {about: reason for about, reason in reasons.items() if reason}
            said = "; ".join(self.reasons.values())
            since = self.trust.since if self.trust else self._clock()
            self.trust = Trust(Level.DEGRADED, said, since) if said else None

    def on(self, trust: Trust) -> Trust:
        """Return a trust with the limits applied."""
        limit = self.trust
        return limit if limit is not None and trust.level is Level.EXACT else trust
