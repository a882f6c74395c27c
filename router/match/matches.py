"""How much of one prompt each rank could reuse, and the trust in that."""

from warmpath.indexer.keys.key import Chain
from warmpath.indexer.rank import Rank
from warmpath.indexer.trust import Trust
from warmpath.router.match.forms import BlockForm
from warmpath.scorer.match import Match


class Matches(dict[Rank, Match]):
    """The match of each rank that holds, or is believed to hold, any block of a prompt.

    `trusts` has the trust at the look-up of each rank that holds a block, and of every rank in shared
    mode, since a look-up in Redis may time out for one prompt and not for another. `chains` has the
    prompt's blocks that were looked up, by their form.
    """

    __slots__ = ("chains", "trusts")

    def __init__(self) -> None:
        super().__init__()
        self.chains: dict[BlockForm, Chain] = {}
        self.trusts: dict[Rank, Trust] = {}

    def trust(self, rank: Rank) -> Trust:
        """Return the trust in a rank's match, or in the answer that it has none."""
        return self.trusts.get(rank) or rank.trust
