"""How much of one prompt each rank could reuse, and the trust in that."""

from indexer.rank import Rank
from indexer.trust import Trust
from scorer.match import Match


class Matches(dict[Rank, Match]):
    """The match of each rank that holds any block of a prompt.

    A look-up in Redis may time out for one prompt and not for another, so ranks in shared mode have a
    trust for each prompt: `trusts`. It is empty outside shared mode, which long loops test first.
    """

    __slots__ = ("trusts",)

    def __init__(self) -> None:
        super().__init__()
        self.trusts: dict[Rank, Trust] = {}

    def trust(self, rank: Rank) -> Trust:
        """Return the trust in a rank's match, or in its having none."""
        return self.trusts.get(rank) or rank.trust
