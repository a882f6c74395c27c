"""A rank of which everything is looked up in the shared index, prompt by prompt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from indexer.engines.cache_groups import Layout
from indexer.engines.event import Tier
from indexer.limits import Limits
from indexer.shared.records.registry import SharedRank
from indexer.trust import Level, Trust


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why an answer may be old or incomplete, and since when (seconds, the ingest's clock)."""

    level: Level
    reason: str
    since: float


class RemoteRank:
    """What its record says (`said`), and no more than `doubt` lets one believe of the present answer."""

    def __init__(
        self,
        said: SharedRank,
        doubt: Callable[[], Doubt | None],
        close: Callable[["RemoteRank"], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        self.pod = said.pod
        self.number = said.number
        self.said = said
        self.is_connected = False
        """Whether the engine's events reach the index, as far as was last heard of that."""
        self._doubt = doubt
        self._close = close
        self._limits = Limits(clock)

    @property
    def trust(self) -> Trust:
        """How far the answer that is being made may be believed of this rank."""
        said, doubt = self.said.trust, self._doubt()
        if doubt is None or said.level in {Level.COLD, Level.STALE}:
            return self._limits.on(said)
        return Trust(doubt.level, doubt.reason, doubt.since)

    @property
    def layout(self) -> Layout:
        """How its cache is divided."""
        return self.said.layout

    @property
    def sequence(self) -> int | None:
        """The engine's last applied batch; None before the first."""
        return self.said.sequence

    @property
    def capacity(self) -> int:
        """Blocks of its fastest tier; 0: not known."""
        return self.said.capacity

    def copies(self) -> int | None:
        """Return how many of them are taken, as its publisher says."""
        return self.said.copies()

    def learn_capacity(self, blocks: int) -> None:
        """Leave it to the publisher, which heals the view."""

    def engine_restarted(self, reason: str) -> None:
        """Leave it to the publisher, which follows the engine."""

    def limit(self, reason: str, about: str = "") -> None:
        """Let the rank be degraded at best, for a reason; with an empty one no longer."""
        self._limits.set(about, reason)

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of a prompt's prefix each tier holds."""
        return self.said.blocks()

    def counts(self) -> Mapping[str, int]:
        """Return nothing: the stream is its publisher's."""
        return {}

    def heard(self, problem: str) -> None:
        """Take what was read of the record; or `problem`, why it could not be.

        That the index is away says nothing about the pod; but what the pod says now is not known.
        """
        self.said.troubled(problem)
        if not problem:
            self.is_connected = self.said.is_connected

    def tick(self) -> None:
        """Let `heard` tell that time has passed: this is called in another thread."""

    def lost_room(self) -> None:
        """Hold nothing that could be lost."""

    def close(self) -> None:
        """Ask for it no longer."""
        self._close(self)

    def check(self) -> None:
        """Hold nothing that could disagree."""
