"""A rank without events, whose cache is not known."""

from collections.abc import Mapping

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.trust import Level, Trust


class BlindRank:
    """A rank that is not followed; the router only has beliefs about it (`indexer.believed`)."""

    is_connected = False
    sequence = None
    capacity = 0

    def __init__(self, pod: str, number: int, now: float) -> None:
        self.pod = pod
        self.number = number
        self.layout = Layout()
        self.trust = Trust(Level.COLD, "it has no events", now)
        self.inexact_since = self.lost_at = now

    def blocks_in_use(self) -> None:
        """Return None: how many blocks are in use is not known."""

    def learn_capacity(self, blocks: int) -> None:
        """Do nothing: there is no view that a known capacity could heal."""

    def engine_restarted(self, reason: str) -> None:
        """Do nothing: there is no view that a restart could end."""

    def emptied(self, reason: str) -> None:
        """Do nothing: there is no view that could be empty."""

    def limit(self, reason: str, about: str = "") -> None:
        """Do nothing: the rank is never exact."""

    def blocks(self) -> Mapping[Tier, int]:
        """Return an empty dict."""
        return {}

    def counts(self) -> Mapping[str, int]:
        """Return an empty dict."""
        return {}

    def tick(self) -> None:
        """Do nothing: nothing depends on time."""

    def lost_room(self) -> None:
        """Do nothing: the rank has no keys in the index."""

    def close(self) -> None:
        """Do nothing: the rank has no keys in the index."""

    def check(self) -> None:
        """Do nothing: the rank has no tables that could disagree."""
