"""The places that slots of the shared index stand for, by the claims that were read. Sans-I/O."""

from warmpath.indexer.index.slot import Place, RankName
from warmpath.indexer.shared.layout.record import Claim


class Places:
    """The places of all pods' claims. A rank that loses a place or has a new claim begins a new life."""

    def __init__(self) -> None:
        self.life_changes = 0
        """Grows whenever any rank's life changes."""
        self._claims: dict[str, Claim] = {}
        """The last claim of each pod, kept also while the pod holds nothing."""
        self._slots_of: dict[str, list[int]] = {}
        self._places: dict[int, Place] = {}
        self._lives: dict[RankName, int] = {}

    def place(self, slot: int) -> Place | None:
        return self._places.get(slot)

    def life(self, pod: str, rank: int) -> int:
        """Return a number that changes when a rank's cache is reset or its pod is claimed again."""
        return self._lives.get(RankName(pod, rank), 0)

    def take(self, pod: str, claim: Claim | None) -> bool:
        """Take a pod's claim; None where the pod holds nothing that this router can use.

        Returns whether the claim is a new one, under which no block was read yet.
        """
        last = self._claims.get(pod)
        is_new = claim is not None and (last is None or last.base != claim.base)
        if claim is not None and claim != last:
            if last is not None:
                self._count_lives(pod, last, claim)
            self._claims[pod] = claim
        elif (claim is not None) == (pod in self._slots_of):
            return False
        self._drop(pod)
        if claim is not None:
            slots = self._slots_of[pod] = []
            for number, spot in enumerate(claim.places):
                if spot is not None:
                    slots.append(slot := claim.slot(number))
                    epoch = self.life(pod, spot.rank)
                    self._places[slot] = Place(pod, spot.rank, spot.tier, epoch, spot.group)
        return is_new

    def _count_lives(self, pod: str, last: Claim, claim: Claim) -> None:
        before, after = (
            {(spot.rank, one.slot(number)) for number, spot in enumerate(one.places) if spot}
            for one in (last, claim)
        )
        ranks = {rank for rank, _ in before - after}
        if last.base != claim.base:
            ranks = set(range(max(last.ranks, claim.ranks)))
        for rank in ranks:
            self._lives[RankName(pod, rank)] = self.life(pod, rank) + 1
            self.life_changes += 1

    def _drop(self, pod: str) -> None:
        for slot in self._slots_of.pop(pod, ()):
            # Two pods never have the same base, unless a record was copied by hand.
            self._places.pop(slot, None)

    def forget(self, pod: str) -> None:
        self._drop(pod)
        self._claims.pop(pod, None)
        for name in [name for name in self._lives if name[0] == pod]:
            del self._lives[name]
            self.life_changes += 1
