"""The description of one engine instance, from which the sources of its ranks are made."""

from collections.abc import Callable
from dataclasses import dataclass

from warmpath.indexer.engines import sglang, trtllm, vllm
from warmpath.indexer.engines.event import Batch
from warmpath.indexer.follow.rank_source import RankSource


@dataclass(frozen=True, slots=True)
class Engine:
    """The description of one engine instance and its events."""

    pod: str
    model: str
    engine: str
    """vllm, sglang or trtllm."""
    events: str
    """Rank 0's ZeroMQ endpoint; for trtllm the URL of /kv_cache_events."""
    replay: str = ""
    topic: str = ""
    ranks: int = 1
    first_rank: int = 0
    """The engine's own number of the first rank here, which is added to rank 0's port."""
    blocks: int = 0
    """Blocks of a rank's cache; 0: not known."""
    block_size: int = 32
    """The tokens_per_block of trtllm, whose events do not have it."""

    def sources(self) -> list[RankSource]:
        """Return the source of each rank, from which its ingestion is made."""
        polled = self.engine == "trtllm"
        return [
            RankSource(
                pod=self.pod,
                rank=number,
                model=self.model,
                decode=self._codec(),
                has_replay=bool(self.replay),
                is_queue=polled,
                topic=self.topic,
                capacity=self.blocks,
                # A single rank may have any number behind a mapped port, so it is not compared.
                said_rank=None if polled or self.ranks == 1 else self.first_rank + number,
                dialect="" if polled else self.engine,
            )
            for number in range(self.ranks)
        ]

    def _codec(self) -> Callable[[bytes], Batch]:
        if self.engine == "trtllm":
            return trtllm.Codec(self.block_size)
        return {"vllm": vllm.decode, "sglang": sglang.decode}[self.engine]
