"""The trust of an engine's own event stream: level and reason, and the batch that heals a degraded one.

`indexer.trust` names the files that decide trust where a publisher or Redis is in between.
"""

from collections.abc import Callable

from warmpath.indexer.trust import Level, Trust

UNSEEN = "no event seen yet"
"""The reason of a stream that begins cold."""


class StreamTrust:
    """The trust of one stream, without regard to its connection; `believe` is told each change."""

    def __init__(self, believe: Callable[[Trust], None], clock: Callable[[], float]) -> None:
        self.level = Level.COLD
        self.reason = UNSEEN
        self.passing = False
        """Whether the trust is degraded only until the stream shows that nothing is missing."""
        self.heals_at = 0
        """The sequence of a batch: a clear in it or in a later one heals the trust."""
        self.stray = ""
        """Why a message could not be read, until it is known whether it was a batch; empty for none."""
        self._proof = 0
        """`stray`'s message was no batch if a batch with this sequence or a later one comes in order."""
        self._believe = believe
        self._clock = clock

    @property
    def is_damaged(self) -> bool:
        return self.level is Level.DEGRADED and not self.passing

    def set(self, level: Level, reason: str, *, passing: bool = False) -> None:
        """Set the level and its reason; the time stays where neither changes."""
        if (level, reason) != (self.level, self.reason):
            self.level, self.reason = level, reason
            self._believe(Trust(level, reason, self._clock()))
        self.passing = passing

    def suspend(self, reason: str) -> None:
        """Degrade the trust until the stream shows that nothing is missing after all."""
        self.set(Level.DEGRADED, reason, passing=True)

    def be_exact(self, reason: str) -> None:
        """Make the trust exact; degraded if a message that could not be read may have been a batch."""
        if self.stray:
            self.suspend(self.stray)
        else:
            self.set(Level.EXACT, reason)

    def degrade(self, reason: str, heals_at: int) -> None:
        """Degrade the trust, as something was missed; a clear in batch `heals_at` or later heals it."""
        self.heals_at = max(self.heals_at, heals_at)
        if not self.is_damaged:
            self.set(Level.DEGRADED, reason)

    def in_order(self, sequence: int, *, is_following: bool) -> None:
        """Take note of a batch in order, which may make the trust exact again."""
        if self.stray and sequence >= self._proof:
            self.stray = ""
        if is_following and not self.stray:
            if sequence == 0 and self.level is not Level.EXACT:
                self.set(Level.EXACT, "followed from the first batch")
            elif self.passing:
                self.set(Level.EXACT, "the next batch is in order: none was missed")

    def strayed(self, reason: str, proof: int) -> None:
        """Record a message that could not be read; `proof` is the sequence to come next."""
        self.stray, self._proof = reason, proof

    def new_life(self, reason: str) -> None:
        """Make the trust cold: the engine restarted."""
        self.heals_at = 0
        self.stray = ""
        self.set(Level.COLD, reason)
