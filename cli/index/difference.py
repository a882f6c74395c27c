"""Compares the shared index with a publisher's snapshots from before and after it was read.

A key in both snapshots must be in the index, a key in neither must not. Keys in only one of them, which
changed in between, are not judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from warmpath.cli.index.truth import NOTHING, Keys, Truth
from warmpath.indexer.shared.layout.record import Claim, SpotOf


@dataclass(slots=True)
class Difference:
    """The wrong keys at one place (rank, tier, group) of a pod."""

    missing: Keys
    """Keys that both snapshots have and the index lacks."""
    extra: Keys
    """Keys that the index has and both snapshots lack."""
    twice: Keys
    """Keys that the index has in two segments."""

    def and_also(self, later: "Difference") -> "Difference":
        """Return the keys that are wrong in this difference and in `later`."""
        return Difference(
            np.intersect1d(self.missing, later.missing),
            np.intersect1d(self.extra, later.extra),
            np.intersect1d(self.twice, later.twice),
        )

    def __bool__(self) -> bool:
        return bool(len(self.missing) or len(self.extra) or len(self.twice))


@dataclass(slots=True)
class Compared:
    """The result for one pod."""

    problem: str = ""
    """Why it could not be compared; empty if it was."""
    sequence: int = 0
    """The first snapshot's position in the publisher's journal."""
    keys: int = 0
    """(place, key) pairs in both snapshots, which were looked for in the index."""
    changed: int = 0
    """(place, key) pairs in only one snapshot."""
    differences: dict[SpotOf, Difference] = field(default_factory=dict)


def in_both(
    before: Mapping[SpotOf, Difference], later: Mapping[SpotOf, Difference]
) -> dict[SpotOf, Difference]:
    """Return the differences found in both readings of the index."""
    both = {spot: before[spot].and_also(later[spot]) for spot in before.keys() & later.keys()}
    return {spot: difference for spot, difference in both.items() if difference}


def compare(
    before: tuple[Claim, Truth], after: tuple[Claim, Truth], held: Mapping[int, Keys]
) -> Compared:
    """Compare the sorted keys of each slot of a claim in the index with a pod's two snapshots.

    Both snapshots are of one claim (`Claim.base`), whose places may have changed in between.
    """
    claim, first = before
    now, second = after
    if first.epoch != second.epoch:
        return Compared(problem="its publisher was restarted meanwhile")
    result = Compared(sequence=first.sequence)
    slots = {spot: claim.slot(n) for n, spot in enumerate(claim.places) if spot is not None}
    # A rank that was emptied meanwhile has other slots now.
    stayed = {
        spot
        for n, spot in enumerate(claim.places)
        if spot is not None and now.places[n : n + 1] == [spot]
    }
    for spot in sorted(first.held.keys() | slots.keys(), key=str):
        had, has = first.held.get(spot, NOTHING), second.held.get(spot, NOTHING)
        must, may = np.intersect1d(had, has), np.union1d(had, has)
        result.changed += len(may) - len(must)
        if spot in slots and spot not in stayed:
            continue
        found, counts = (
            np.unique(held[slots[spot]], return_counts=True)
            if spot in slots
            else (NOTHING, NOTHING)
        )
        result.keys += len(must)
        difference = Difference(
            np.setdiff1d(must, found, assume_unique=True),
            np.setdiff1d(found, may, assume_unique=True),
            found[counts > 1],
        )
        if difference:
            result.differences[spot] = difference
    return result
