"""How far the view of a rank may be believed, why, and since when."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The four levels of trust."""

    COLD = "cold"
    """Nothing seen yet."""
    EXACT = "exact"
    """Complete since the engine's start or a clear, or complete again after a gap was closed."""
    DEGRADED = "degraded"
    """Something was missed: what is shown may be missing or already evicted."""
    STALE = "stale"
    """The event stream is gone; nothing can be said of now."""


MOST_REASON = 400
"""Characters of a reason that somebody else gives."""

LOST_ROOM = "index.max-bytes is reached: part was given up"
"""The reason where the index had to let go of something to make room."""

BEHIND = "its events are followed late"
"""How the reason begins where events come faster than they are followed, or reach us late."""

DRIFTED = "more blocks were announced than the cache has"
"""How the reason begins where what an engine announces cannot all be there."""


@dataclass(frozen=True, slots=True)
class Trust:
    """A level, its reason in words, and since when (seconds, the ingest's clock)."""

    level: Level
    reason: str
    since: float
