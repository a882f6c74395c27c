"""Forgets what is believed of ranks whose caches have begun anew."""

from collections.abc import Sequence

from indexer.believed.beliefs import Believed
from indexer.ingest import Ingest
from indexer.rank import Rank

MOST_LIVES = 100_000
"""Ranks of which the life is remembered, those that are gone among them."""


class OldLives:
    """The lives of the ranks about which something may be believed."""

    def __init__(self, ingest: Ingest, believed: Believed) -> None:
        self._ingest = ingest
        self._believed = believed
        self._lives: dict[tuple[str, int], int] = {}
        self._ranks: list[Rank] = []
        """Those whose lives were looked at last."""
        self._changes = 0
        """How many changes of lives there had been before."""

    def forget(self, ranks: Sequence[Rank]) -> None:
        """Believe nothing of those that have begun anew: what was sent there before is gone."""
        # Counted before the lives are read: a change in between is seen the next time.
        changes = self._ingest.life_changes
        if changes == self._changes and [*ranks] == self._ranks:
            return
        self._ranks, self._changes = [*ranks], changes
        names = [(rank.pod, rank.number) for rank in ranks]
        current = self._ingest.lives(names)
        if len(self._lives) > MOST_LIVES:
            self._lives.clear()
        lives = self._lives
        for name, life in zip(names, current, strict=True):
            if lives.get(name) != life:
                if name in lives:
                    self._believed.forget(*name)
                lives[name] = life
