"""Blocks of the fastest tier that are counted or shown although they may not be there.

Engines announce some hits as stores, so a rank can seem to hold more
blocks than its cache has.
"""

from collections.abc import Collection, Sequence

from warmpath.indexer.engines.cache_groups import TRTLLM_WINDOW
from warmpath.indexer.engines.event import EngineHash, Stored, Tier
from warmpath.indexer.resolve.groups import Groups
from warmpath.indexer.resolve.holding import Holding
from warmpath.indexer.resolve.names import Names


def blocks_in_use(groups: Groups, names: Names) -> int | None:
    """Return how many blocks of the fastest tier are in use; None if it has several pools.

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
