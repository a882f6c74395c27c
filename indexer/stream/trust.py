"""The trust of an engine's own event stream: level and reason, and the batch that heals a degraded one.

`indexer.trust` names the files that decide trust where a publisher or Redis is in between.
"""

from collections.abc import Callable

from warmpath.indexer.trust import Level, Trust


class StreamTrust:
    """The trust of one stream; `believe` is told each change.

    Times are seconds of one clock, given by the caller.
    """

    def __init__(self, now: float, believe: Callable[[Trust], None] = lambda _: None) -> None:
        self._trust = Trust(Level.COLD, "no event seen yet", now)
        self.now = self._trust
        """The present trust in the router's view."""
        self._believe = believe
        self.passing = False
        """Whether it is degraded only until the stream shows that nothing is missing after all."""
        self.heals_at = 0
        """The sequence of a batch: a clear in it or in a later one heals the trust."""
        self._stale: Trust | None = None
        self.stray = ""
        """Why a message could not be read, until it is known whether it was a batch; empty for none."""
        self._proof = 0
        """The message was not a batch if a batch with this sequence or a later one arrives in order."""

    @property
    def level(self) -> Level:
        """The level without regard to the connection."""
        return self._trust.level

    @property
    def reason(self) -> str:
        """The reason for that level."""
        return self._trust.reason

    @property
    def is_damaged(self) -> bool:
        """Whether it is degraded, and not only `passing`."""
        return self.level is Level.DEGRADED and not self.passing

    @property
    def is_stale(self) -> bool:
        """Whether the connection has been gone for too long."""
        return self._stale is not None

    def set(self, level: Level, reason: str, now: float, *, passing: bool = False) -> None:
        """Set the level and its reason; the time stays where neither changes."""
        if (level, reason) != (self._trust.level, self._trust.reason):
            self._stand(Trust(level, reason, now), self._stale)
        self.passing = passing

    def _stand(self, trust: Trust, stale: Trust | None) -> None:
        self._trust, self._stale = trust, stale
        self.now = stale or trust
        self._believe(self.now)

    def be_exact(self, reason: str, now: float) -> None:
        """Make the trust exact, or degraded where an unread message may have been a batch."""
        if self.stray:
            self.set(Level.DEGRADED, self.stray, now, passing=True)
        else:
            self.set(Level.EXACT, reason, now)

    def degrade(self, reason: str, heals_at: int, now: float) -> None:
        """Degrade the trust, as something was missed; a clear in batch `heals_at` or later heals it."""
        self.heals_at = max(self.heals_at, heals_at)
        if not self.is_damaged:
            self.set(Level.DEGRADED, reason, now)

    def in_order(self, sequence: int, now: float, *, is_following: bool) -> None:
        """Take note of a batch in order, which may make the trust exact again."""
        if self.stray and sequence >= self._proof:
            self.stray = ""
        if is_following and not self.stray:
            if sequence == 0 and self.level is not Level.EXACT:
                self.set(Level.EXACT, "followed from the first batch", now)
            elif self.passing:
                self.set(Level.EXACT, "the next batch is in order: none was missed", now)

    def strayed(self, reason: str, proof: int) -> None:
        """Record a message that could not be read; `proof` is the sequence to come next."""
        self.stray, self._proof = reason, proof

    def disconnected(self, now: float) -> None:
        """Make the trust stale, unless it is cold: the connection has been gone for too long."""
        if self.level is not Level.COLD:
            gone = Trust(Level.STALE, "the event stream is disconnected", now)
            self._stand(self._trust, gone)

    def connected(self) -> None:
        """End staleness: there is a connection."""
        self._stand(self._trust, None)

    def new_life(self, reason: str, now: float) -> None:
        """Make the trust cold: the engine restarted."""
        self.heals_at = 0
        self.stray = ""
        self.set(Level.COLD, reason, now)

    def restore(
        self, level: Level, reason: str, now: float, *, passing: bool, heals_at: int
    ) -> None:
        """Go on from the trust that another process saved."""
        stale = Trust(Level.STALE, "restored from a file, not connected yet", now)
        self._stand(Trust(level, reason, now), stale)
        self.passing = passing
        self.heals_at = heals_at
