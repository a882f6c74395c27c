"""The cache groups that a rank's stores have shown in its present life."""

from warmpath.indexer.engines.cache_groups import WINDOW_KINDS, Group, Layout
from warmpath.indexer.engines.event import Stored, Tier
from warmpath.indexer.resolve.saved import SavedResolver


class Groups:
    """Learns the groups and their block sizes."""

    def __init__(self) -> None:
        self.layout = Layout()
        self.firm: set[int] = set()
        """Groups whose block size was seen on more than a lone block."""
        self.parted: set[int] = set()
        """Groups with blocks of several sizes: a block may also have the names of its parts."""

    def clear(self) -> None:
        """Forget every group."""
        self.layout = Layout()
        self.firm.clear()
        self.parted.clear()

    def restore(self, saved: SavedResolver) -> None:
        """Take over the groups that another process saved."""
        self.layout = Layout(saved.groups, saved.lookahead)
        self.firm = set(saved.firm)
        self.parted = set(saved.parted)

    def learn(self, event: Stored) -> None:
        """Learn from a store in the fastest tier.

        A lone block may be the tail of a prompt, in a smaller size than the group's, so its size holds
        only until a larger one shows.
        """
        number = event.group
        if event.tier is not Tier.GPU or event.block_size < 1:
            return
        known = self.layout.groups.get(number)
        if known is not None and event.block_size != known.block_size:
            self.parted.add(number)
        if known is None or (event.block_size > known.block_size and number not in self.firm):
            known = Group(event.kind, event.block_size, event.window)
            self.layout = Layout({**self.layout.groups, number: known}, bool(event.lookahead))
        if len(event.hashes) > 1 and event.block_size == known.block_size:
            self.firm.add(number)

    def is_window(self, number: int) -> bool:
        """Return whether a group needs only the last blocks before the point of reuse."""
        known = self.layout.groups.get(number)
        return known is not None and known.kind in WINDOW_KINDS
