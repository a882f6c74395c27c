"""Builds the parts that follow an engine: codec, sources of its ranks, and connections.

Routers in direct mode and publishers both use it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq.asyncio

from indexer.engines import sglang, trtllm, vllm
from indexer.engines.event import Batch
from indexer.follow.endpoint import rank_endpoint
from indexer.follow.engine_tls import EngineTls
from indexer.follow.poll import Poller
from indexer.follow.rank_ingest import RankIngest
from indexer.follow.rank_source import RankSource
from indexer.follow.subscribe import Subscriber
from indexer.process.tasks import Work

POLL_SECONDS = 0.05


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


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of connections, in seconds and bytes, and TLS settings for engines with HTTPS."""

    replay_seconds: float
    reconnect_seconds: float
    max_frame_bytes: int
    tls: EngineTls | None = None
    """None: certificates are verified with the system's authorities."""


def connections(
    engine: Engine,
    ranks: Sequence[RankIngest],
    context: zmq.asyncio.Context,
    patience: Patience,
) -> list[Work]:
    """Return the tasks that follow an engine."""
    if engine.engine == "trtllm":
        poller = Poller(
            dict(enumerate(ranks, engine.first_rank)),
            engine.events,
            interval=POLL_SECONDS,
            timeout=patience.replay_seconds,
            max_bytes=patience.max_frame_bytes,
            tls=patience.tls,
        )
        return [Work(f"fetching the events of pod {engine.pod}", poller.run, poller.failed)]
    works = []
    for number, rank in enumerate(ranks):
        subscriber = Subscriber(
            rank,
            context,
            events=rank_endpoint(engine.events, engine.first_rank + number),
            replay=rank_endpoint(engine.replay, engine.first_rank + number)
            if engine.replay
            else "",
            replay_seconds=patience.replay_seconds,
            reconnect_seconds=patience.reconnect_seconds,
            max_frame_bytes=patience.max_frame_bytes,
        )
        name = f"following pod {engine.pod} rank {number}"
        works.append(Work(name, subscriber.run, rank.failed))
    return works
