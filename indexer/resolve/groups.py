"""The cache groups that a rank's stores have shown in its present life.

Also finds blocks of the fastest tier that may not be there: engines announce some hits as stores, so a
rank can seem to hold more blocks than its cache has.
"""

from collections.abc import Collection, Sequence

from warmpath.indexer.engines.cache_groups import TRTLLM_WINDOW, WINDOW_KINDS, Group, Layout
from warmpath.indexer.engines.event import EngineHash, Stored, Tier
from warmpath.indexer.resolve.holding import Holding
from warmpath.indexer.resolve.names import Names
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
        self.layout = Layout()
        self.firm.clear()
        self.parted.clear()

    def restore(self, saved: SavedResolver) -> None:
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
        known = self.layout.groups.get(number)
        return known is not None and known.kind in WINDOW_KINDS


def blocks_in_use(groups: Groups, names: Names) -> int | None:
    """Return how many blocks of the fastest tier are in use; None if groups have pools of their own.

    All copies in all groups count, since the groups' blocks come out of one pool. Names in doubt do not,
    since their blocks may be free, nor do groups that also name parts of blocks, since a block would
    count twice.
    """
    kinds = [group.kind for group in list(groups.layout.groups.values())]
    if kinds.count(TRTLLM_WINDOW) > 1:
        return None  # each window has its own pool
    return sum(
        holding.certain
        for (tier, group), holding in list(names.holdings.items())
        if tier is Tier.GPU and group not in groups.parted
    )


def may_be_hit(event: Stored, held: Sequence[EngineHash], groups: Groups, names: Names) -> bool:
    """Return whether a store of `held` may be a hit that is announced as a store.

    A hit begins where its prompt begins, and all its blocks are cached; of a hit in a window, only the
    last ones are.
    """
    if event.tier is not Tier.GPU:
        return False
    if groups.is_window(event.group):
        return event.parent is None or event.is_rest
    return event.parent is None and bool(names.certain((event.tier, event.group), held[:1]))


def may_show_hits(groups: Groups, names: Names) -> bool:
    """Return whether blocks may be shown as held only because hits were announced as stores.

    A hit counts as one more copy, so a name that was removed since may be gone although copies are left.
    In a window, a hit also names the blocks before the window, which the window does not hold.
    """
    return any(
        holding.repeated if groups.is_window(group) else holding.repeated & holding.thinned
        for (_, group), holding in list(names.holdings.items())
        if holding.repeated
    )


def unsure(holding: Holding, *, is_window: bool) -> Collection[EngineHash]:
    """Return the names of a place that are not certain to be held although nothing was missed.

    A hit and a store both show that a block is there at that time, so a name is certain to be held
    unless a copy of it was removed since. Windows are an exception: hits also name blocks before the
    window, which it does not hold.
    """
    return holding.copies.keys() - holding.doubted if is_window else set(holding.thinned)
