"""Drops the beliefs about ranks whose engine has begun a new life with an empty cache."""

from collections.abc import Sequence

from warmpath.indexer.believed.beliefs import Believed
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest

MOST_LIVES = 100_000
"""Remembered ranks, removed ones included, beyond which all are forgotten at the next call."""


class OldLives:
    """Remembers the life of each rank that may have beliefs."""

    def __init__(self, ingest: Ingest, believed: Believed) -> None:
        self._ingest = ingest
        self._believed = believed
        self._lives: dict[tuple[str, int], int] = {}
        self._ranks: list[Rank] = []
        """The ranks of the last call."""
        self._changes = 0
        """`Ingest.life_changes` at the last call."""

    def forget(self, ranks: Sequence[Rank]) -> None:
        """Drop the beliefs about those of `ranks` that have begun a new life since the last call."""
        # Read before the lives are: a change in between is then seen by the next call.
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
