"""Ranks that are followed without sockets, and the blocks that they then hold."""

from collections.abc import Callable

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.contract import Index
from warmpath.indexer.ranks import Ingest


def new_ingest(index: Callable[[], Index] = ArrayIndex) -> Ingest:
    return Ingest(index(), hash_seed="", pending_bytes=1 << 20, stale_after=1.0, clock=lambda: 0.0)


def source(pod: str = "p", **changes: object) -> RankSource:
    fields = {
        "rank": 0, "model": "m", "decode": vllm.decode, "has_replay": True, "dialect": "vllm",
    } | changes  # fmt: skip
    return RankSource(pod, **fields)  # type: ignore[arg-type]


def held(rank: RankIngest, tier: Tier = Tier.GPU) -> set[int]:
    return rank.state.held().get((tier, 0), set())
