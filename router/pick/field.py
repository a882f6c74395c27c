"""The ranks that could take a request, and their figures that do not change from pick to pick."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indexer.rank import Rank
from router.pods.table import Pod


@dataclass(frozen=True, slots=True)
class Field:
    """The ranks of some pods. In each sequence a place is one rank's."""

    of: Sequence[Pod]
    pods: Sequence[Pod]
    """Of each rank."""
    ranks: Sequence[Rank]
    names: Sequence[tuple[str, int]]
    """Pod and number of each rank."""
    places: Mapping[tuple[str, int], int]
    """Of each name."""
    place_of: Mapping[Rank, int]

    @property
    def has_ranks(self) -> bool:
        """Whether several are of one pod."""
        return len(self.of) < len(self.ranks)


def field_of(pods: Sequence[Pod]) -> Field:
    """Return the ranks of these pods."""
    both = [(pod, rank) for pod in pods for rank in pod.ranks]
    names = [(pod.id, rank.number) for pod, rank in both]
    ranks = [rank for _, rank in both]
    return Field(
        list(pods),
        [pod for pod, _ in both],
        ranks,
        names,
        {name: place for place, name in enumerate(names)},
        {rank: place for place, rank in enumerate(ranks)},
    )
