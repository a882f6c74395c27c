"""The ranks that could take a request, with the properties that stay the same from pick to pick."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indexer.rank import Rank
from router.pods.table import Pod


@dataclass(frozen=True, slots=True)
class Field:
    """The ranks of some pods. All sequences have the ranks in the same order."""

    of: Sequence[Pod]
    pods: Sequence[Pod]
    """The pod of each rank."""
    ranks: Sequence[Rank]
    names: Sequence[tuple[str, int]]
    """Pod and number of each rank."""
    places: Mapping[tuple[str, int], int]
    """The index of each name in the sequences."""
    place_of: Mapping[Rank, int]

    @property
    def has_ranks(self) -> bool:
        """Whether some pod has several ranks."""
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
