"""The ranks that could take a request, with the properties that stay the same from pick to pick."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from warmpath.indexer.rank import Rank
from warmpath.router.pods.table import Pod


@dataclass(frozen=True, slots=True)
class Field:
    """The ranks of some pods. All sequences have the ranks in the same order."""

    of: Sequence[Pod]
    avoided: Collection[tuple[str, int]]
    """The ranks that are left out if there are others (`router.load.stuck`)."""
    pods: Sequence[Pod]
    """The pod of each rank."""
    ranks: Sequence[Rank]
    names: Sequence[tuple[str, int]]
    """Pod and number of each rank."""
    places: Mapping[tuple[str, int], int]
    """The index of each name in the sequences."""
    place_of: Mapping[Rank, int]

    @property
    def left_out(self) -> Sequence[tuple[str, int]]:
        """The ranks that are left out, by pod and number."""
        if not self.avoided:
            return ()
        both = ((pod.id, rank.number) for pod in self.of for rank in pod.ranks)
        return [name for name in both if name in self.avoided and name not in self.places]

    @property
    def has_ranks(self) -> bool:
        """Whether some pod has several ranks."""
        return any(len(pod.ranks) > 1 for pod in self.of)


def field_of(pods: Sequence[Pod], avoided: Collection[tuple[str, int]] = ()) -> Field:
    """Return the ranks of these pods, those in `avoided` only if there are no others."""
    both = [(pod, rank) for pod in pods for rank in pod.ranks]
    if avoided:
        both = [one for one in both if (one[0].id, one[1].number) not in avoided] or both
    names = [(pod.id, rank.number) for pod, rank in both]
    ranks = [rank for _, rank in both]
    return Field(
        list(pods),
        avoided,
        [pod for pod, _ in both],
        ranks,
        names,
        {name: place for place, name in enumerate(names)},
        {rank: place for place, rank in enumerate(ranks)},
    )
