"""Which form the embedded index has on this machine, and what follows ranks into it."""

import logging
import time
from functools import cache

from indexer.follow.rank_source import RankSource
from indexer.index.contract import Index
from indexer.index.memory import MemoryIndex
from indexer.index.reference import ReferenceIndex
from indexer.resolve.rank_slots import RankSlots
from indexer.resolve.rank_state import PureState, RankState
from indexer.resolve.resolver import Resolver

log = logging.getLogger(__name__)


def embedded_index(max_bytes: int, *, pure: bool = False) -> Index:
    """Return an empty index of at most `max_bytes`, compiled where Numba can be had.

    With `pure` it is the one in pure Python there too. The first compiled one of a process takes the
    time that compiling takes: half a second where it was done before, else up to a minute.
    """
    if pure:
        return MemoryIndex(max_bytes)
    try:
        from indexer.compiled.array_index import ArrayIndex  # noqa: PLC0415  may be missing
    except ImportError as error:
        log.warning("the index runs in pure Python, about six times slower: %s", error)
        return MemoryIndex(max_bytes)
    _warm_up()
    return ArrayIndex(max_bytes)


@cache
def _warm_up() -> None:
    """Compile what runs while serving, or load it; once a process."""
    from indexer.compiled.array_index import ArrayIndex  # noqa: PLC0415
    from indexer.compiled.warm_up import warm_up  # noqa: PLC0415

    begun = time.monotonic()
    warm_up(ArrayIndex(1 << 20))
    log.info("the compiled index was ready after %.1f s", time.monotonic() - begun)


def new_state(
    source: RankSource, index: Index, slots: RankSlots, *, hash_seed: str, orphan_bytes: int
) -> RankState:
    """Return what a rank's batches are applied to."""
    if source.dialect and not isinstance(index, MemoryIndex | ReferenceIndex):
        from indexer.compiled.array_index import ArrayIndex  # noqa: PLC0415  may be missing
        from indexer.compiled.array_rank import ArrayState  # noqa: PLC0415

        if isinstance(index, ArrayIndex):
            return ArrayState(
                source.model,
                hash_seed,
                orphan_bytes=orphan_bytes,
                index=index,
                slots=slots,
                dialect=source.dialect,
                decode=source.decode,
            )
    waiting = index.waiting if isinstance(index, MemoryIndex) else None
    resolver = Resolver(source.model, hash_seed, orphan_bytes=orphan_bytes, waiting=waiting)
    return PureState(resolver, slots)
