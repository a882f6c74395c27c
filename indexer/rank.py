"""What the rest of the router sees of a rank, however its events reach us."""

from collections.abc import Mapping
from typing import Protocol

from indexer.engines.cache_groups import Layout
from indexer.engines.event import Tier
from indexer.trust import Trust


class Rank(Protocol):
    """One data-parallel rank of one pod, followed."""

    @property
    def pod(self) -> str:
        """The pod's id."""

    @property
    def number(self) -> int:
        """The rank's number in its pod."""

    @property
    def trust(self) -> Trust:
        """How far what the index holds of this rank may be believed."""

    @property
    def layout(self) -> Layout:
        """How its cache is divided."""

    @property
    def is_connected(self) -> bool:
        """Whether its events reach us now."""

    @property
    def sequence(self) -> int | None:
        """The engine's last applied batch; None before the first."""

    @property
    def capacity(self) -> int:
        """Blocks of its fastest tier; 0: not known."""

    def copies(self) -> int | None:
        """Return how many of them are taken, as was announced; None where nobody tells."""

    def learn_capacity(self, blocks: int) -> None:
        """Take note of the cache's size, where nobody has configured it."""

    def engine_restarted(self, reason: str) -> None:
        """Take note that somebody saw its engine begin anew, whatever its events say."""

    def limit(self, reason: str, about: str = "") -> None:
        """Let it be degraded at best, for a reason `about` a subject; with an empty one no longer.

        May be called from any thread.
        """

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of a prompt's prefix each tier holds."""

    def counts(self) -> Mapping[str, int]:
        """Return what happened to its stream so far, by kind of happening."""
