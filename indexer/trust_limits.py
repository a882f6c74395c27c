"""Lowers an exact rank to degraded for reasons outside its event stream, such as an engine's version.

`indexer.trust` names the files that decide the trust before that.
"""

from collections.abc import Callable, Mapping
from threading import Lock

from warmpath.indexer.trust import Level, Trust

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
