"""Trust: how far the router's view of a rank may be believed, with a reason and a time.

These files decide it: `indexer.stream.trust` for an engine's own stream; `indexer.watch.watched_source`
for a publisher over gRPC, and for a copy of Redis; with one shared index in Redis
`indexer.shared.records.registry` by a pod's record, `indexer.shared.records.record_source` by the
record's age and Redis' faults, and `indexer.shared.query.index` for each answer.

`indexer.rank` keeps and logs it, and lowers it for other reasons: an engine's version, or events that
have been away for too long.
"""

from enum import StrEnum

import msgspec


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


class Trust(msgspec.Struct, frozen=True):
    """A level, its reason in words, and since when (seconds, the ingest's clock)."""

    level: Level
    reason: str
    since: float


EMPTIED = "emptied"
"""The subject of a limit: a cache that the engine has dropped, which no event has said yet."""
