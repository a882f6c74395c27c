"""The cache of an engine's pod, which a publisher follows to pass it on to routers or Redis."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import NoReturn

from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.follow.stream_source import ORPHAN_BYTES, Clock, RankIngest
from warmpath.indexer.keys.segment import Segments
from warmpath.indexer.resolve.rank_state import PureState
from warmpath.indexer.resolve.resolver import Resolver
from warmpath.indexer.watch.pod_cache import Journal, Pending, PodCache


def engine_cache(
    engine: Engine,
    *,
    hash_seed: str,
    journal_bytes: int,
    pending_bytes: int,
    stale_after: float,
    segmented: bool,
    clock: Clock,
) -> PodCache:
    """Return the cache of an engine's pod, with its ranks, before the first event.

    With `segmented`, the journal names the segment of each key in the shared index. `pending_bytes`,
    `stale_after` (seconds) and `clock` are as in `RankIngest`.
    """
    cache = PodCache(engine.pod, Journal(secrets.token_hex(8), journal_bytes))
    for source in engine.sources():
        sink = Pending()
        segments = Segments() if segmented else None
        resolver = Resolver(source.model, hash_seed, orphan_bytes=ORPHAN_BYTES, segments=segments)
        rank = RankIngest(
            source, PureState(resolver, sink),
            pending_bytes=pending_bytes, stale_after=stale_after, clock=clock,
        )  # fmt: skip
        cache.add(rank, resolver, sink)
    return cache


async def collect_forever(
    cache: PodCache, wake: Sequence[Callable[[], None]], *, pause: float, clock: Clock
) -> NoReturn:
    """Put changes into the journal each `pause` seconds; call each of `wake` after new entries."""
    sequence = 0
    while True:
        for rank in cache.ranks:
            rank.tick()
        cache.collect()
        cache.pulse.beat(clock())
        # A snapshot for one watcher may have collected changes that the others do not know of yet.
        if cache.journal.sequence != sequence:
            sequence = cache.journal.sequence
            for one in wake:
                one()
        await asyncio.sleep(pause)
