"""What keeps a rank from being called exact, however unbroken its events are."""

from collections.abc import Callable, Mapping
from threading import Lock

from indexer.trust import Level, Trust


class Limits:
    """Reasons by subject; while there is any, the rank is degraded at best.

    May be used from any thread. `clock` is the ingest's.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.reasons: Mapping[str, str] = {}
        self._clock = clock
        self._trust: Trust | None = None
        self._lock = Lock()

    def set(self, about: str, reason: str) -> None:
        """Limit the trust for a reason; with an empty one no longer, as far as this subject goes."""
        if self.reasons.get(about, "") == reason:
            return
        with self._lock:
            reasons = {**self.reasons, about: reason}
            self.reasons = {about: reason for about, reason in reasons.items() if reason}
            said = "; ".join(self.reasons.values())
            since = self._trust.since if self._trust else self._clock()
            self._trust = Trust(Level.DEGRADED, said, since) if said else None

    def on(self, trust: Trust) -> Trust:
        """Return a trust, or what is left of it."""
        limit = self._trust
        return limit if limit is not None and trust.level is Level.EXACT else trust
