"""Builds the connections that follow an engine, for routers in direct mode and for publishers."""

from collections.abc import Sequence
from dataclasses import dataclass

import zmq.asyncio

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.endpoint import rank_endpoint
from warmpath.indexer.follow.instance import Engine, EngineTls
from warmpath.indexer.follow.poll import Poller
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.follow.subscribe import Subscriber
from warmpath.process.tasks import Work

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of connections, in seconds and bytes, and TLS settings for engines with HTTPS."""

    replay_seconds: float = 10.0
    """Longest wait for each message of a replay, and for an answer of TensorRT-LLM; an engine answers
    between two steps."""
    reconnect_seconds: float = 0.25
    """Pause between attempts to connect."""
    max_frame_bytes: int = 64 << 20
    """Largest accepted message: a step of a million tokens is 5 MB."""
    tls: EngineTls | None = None
    """None: certificates are verified with the system's authorities."""


def connections(
    engine: Engine,
    ranks: Sequence[RankIngest],
    context: zmq.asyncio.Context,
    patience: Patience,
) -> list[Work]:
    """Return the tasks that follow an engine."""
    if ENGINES[engine.engine].is_polled:
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
