"""Blocks of the fastest tier that are counted or shown although they may not be there.

Engines announce some hits as stores (`shared/engine-events.md`, 2.8), so a rank can seem to hold more
blocks than its cache has.
"""

from collections.abc import Collection, Sequence

from indexer.engines.cache_groups import TRTLLM_WINDOW
from indexer.engines.event import EngineHash, Stored, Tier
from indexer.resolve.groups import Groups
from indexer.resolve.holding import Holding
from indexer.resolve.names import Names


def copies(groups: Groups, names: Names) -> int | None:
    """Return how many blocks of the fastest tier are taken; None where there are several pools.

    Every copy counts, and every group, whose blocks come out of one pool. Left out is whatever might
    count a block that is not taken, or one twice: names in doubt, and groups that name parts of blocks
    too (2.8, 3).
    """
    kinds = [group.kind for group in list(groups.layout.groups.values())]
    if kinds.count(TRTLLM_WINDOW) > 1:
        return None  # each window has its own (6.2)
    return sum(
        holding.certain
        for (tier, group), holding in list(names.holdings.items())
        if tier is Tier.GPU and group not in groups.parted
    )


def may_be_hit(event: Stored, held: Sequence[EngineHash], groups: Groups, names: Names) -> bool:
    """Whether a store of `held` may be a hit that is announced again.

    A hit begins at the prompt's beginning, and all of it is cached; in a window, its end.
    """
    if event.tier is not Tier.GPU:
        return False
    if groups.is_window(event.group):
        return event.parent is None or event.is_rest
    return event.parent is None and bool(names.certain((event.tier, event.group), held[:1]))


def may_show_hits(groups: Groups, names: Names) -> bool:
    """Whether something may be shown only because a hit was announced as a store.

    A name that was removed since is gone then, and a window does not hold the blocks before it that the
    hit named.
    """
    return any(
        holding.repeated if groups.is_window(group) else holding.repeated & holding.thinned
        for (_, group), holding in list(names.holdings.items())
        if holding.repeated
    )


def unsure(holding: Holding, *, is_window: bool) -> Collection[EngineHash]:
    """Return the names of a place that are not certain to be held although nothing was missed.

    A hit and a store both say that a block is there at that time, so a name is certain to be held unless
    something was removed of it since. Only windows are announced with blocks that they do not hold:
    those before the window.
    """
    return holding.copies.keys() - holding.doubted if is_window else set(holding.thinned)
