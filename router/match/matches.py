"""What ranks could reuse of one prompt, and how far that may be believed."""

from indexer.rank import Rank
from indexer.trust import Trust
from scorer.match import Match


class Matches(dict[Rank, Match]):
    """The match of each rank that holds anything of a prompt.

    A look-up in Redis may miss its time for one prompt and not for another, so that ranks which are
    looked up there have their trust by prompt: `trusts`. It is empty where nobody asks Redis, and long
    loops ask for that first.
    """

    __slots__ = ("trusts",)

    def __init__(self) -> None:
        super().__init__()
        self.trusts: dict[Rank, Trust] = {}

    def trust(self, rank: Rank) -> Trust:
        """Return how far the match of a rank may be believed, or that it has none."""
        return self.trusts.get(rank) or rank.trust
