"""The contract of a followed rank, the same for each way in which its events reach the router."""

from collections.abc import Mapping
from typing import Protocol

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.trust import Trust


class Rank(Protocol):
    """One data-parallel rank of one pod, with its view."""

    @property
    def pod(self) -> str:
        """The pod's id."""

    @property
    def number(self) -> int:
        """The rank's number in its pod."""

    @property
    def trust(self) -> Trust:
        """The trust in the router's view of this rank."""

    @property
    def inexact_since(self) -> float:
        """Since when it is not exact, by the clock of `trust`; of no meaning while it is exact."""

    @property
    def layout(self) -> Layout:
        """Its cache groups and block sizes."""

    @property
    def is_connected(self) -> bool:
        """Whether its events reach us now."""

    @property
    def lost_at(self) -> float:
        """Since when its events do not reach us, by the clock of `trust`; no meaning while they do."""

    @property
    def sequence(self) -> int | None:
        """The sequence number of the engine's last applied batch; None before the first."""

    @property
    def capacity(self) -> int:
        """Blocks of its fastest tier; 0: not known."""

    def blocks_in_use(self) -> int | None:
        """Return how many blocks of the fastest tier are in use, by its events; None: not known."""

    def learn_capacity(self, blocks: int) -> None:
        """Set the cache's size in blocks, unless it is configured."""

    def engine_restarted(self, reason: str) -> None:
        """Handle a restart of the engine that was seen outside its events."""

    def emptied(self, reason: str) -> None:
        """Handle that the engine has dropped its cache, before its events say so."""

    def limit(self, reason: str, about: str = "") -> None:
        """Degrade the rank for a reason; an empty `reason` lifts the limit with the same `about`.

        Thread-safe.
        """

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of the group `Layout.shown` each tier holds."""

    def counts(self) -> Mapping[str, int]:
        """Return counters of its event stream, by name."""
