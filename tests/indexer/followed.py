"""Ranks that are followed without sockets, and the blocks that they then hold."""

from collections.abc import Callable

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.contract import Index
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.resolve.rank_state import PureState
from warmpath.indexer.resolve.resolver import Resolver
from warmpath.indexer.watch.pod_cache import PodCache


def new_ingest(index: Callable[[], Index] = ArrayIndex, **changes: object) -> Ingest:
    settings = {
        "hash_seed": "", "pending_bytes": 1 << 20, "stale_after": 1.0, "clock": lambda: 0.0,
    } | changes  # fmt: skip
    return Ingest(index(), **settings)  # type: ignore[arg-type]


def published(
    cache: PodCache, pod: str = "p", rank: int = 0, *,
    clock: Callable[[], float] = lambda: 0.0, capacity: int = 0,
) -> tuple[RankIngest, Resolver]:  # fmt: skip
    """Have a publisher's cache follow a rank."""
    source = RankSource(pod, rank, "m", vllm.decode, has_replay=False, capacity=capacity)
    followed = cache.add(source, stale_after=1e9, segmented=True, clock=clock)
    followed.connected()
    assert isinstance(followed.state, PureState)
    return followed, followed.state.resolver


def source(pod: str = "p", **changes: object) -> RankSource:
    fields = {
        "rank": 0, "model": "m", "decode": vllm.decode, "has_replay": True, "dialect": "vllm",
    } | changes  # fmt: skip
    return RankSource(pod, **fields)  # type: ignore[arg-type]


def following(index: Callable[[], Index] = ArrayIndex, **changes: object) -> RankIngest:
    """Follow a rank that is connected, without a replay."""
    rank = new_ingest(index).add(source(**{"has_replay": False} | changes))  # type: ignore[arg-type]
    rank.connected()
    return rank


def held(rank: RankIngest, tier: Tier = Tier.GPU) -> set[int]:
    return rank.state.held().get((tier, 0), set())
