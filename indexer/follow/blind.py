"""A rank without events: nothing is known of what it holds."""

from collections.abc import Mapping

from indexer.engines.cache_groups import Layout
from indexer.engines.event import Tier
from indexer.trust import Level, Trust


class BlindRank:
    """Stands for a rank that nobody follows. What was sent there is believed (`indexer.believed`)."""

    is_connected = False
    sequence = None
    capacity = 0

    def __init__(self, pod: str, number: int, now: float) -> None:
        self.pod = pod
        self.number = number
        self.layout = Layout()
        self.trust = Trust(Level.COLD, "it has no events", now)

    def copies(self) -> None:
        """Return None: nobody tells."""

    def learn_capacity(self, blocks: int) -> None:
        """Need no capacity: there is no view that could heal."""

    def engine_restarted(self, reason: str) -> None:
        """Need no restart: nothing is known of the life before."""

    def limit(self, reason: str, about: str = "") -> None:
        """Need no limit: it is never exact."""

    def blocks(self) -> Mapping[Tier, int]:
        """Return nothing."""
        return {}

    def counts(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def tick(self) -> None:
        """Let time pass."""

    def lost_room(self) -> None:
        """Hold nothing that could be lost."""

    def close(self) -> None:
        """Hold nothing that could be let go."""

    def check(self) -> None:
        """Hold nothing that could disagree."""
