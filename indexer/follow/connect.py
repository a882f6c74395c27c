"""Builds the connections that follow an engine, for routers in direct mode and for publishers."""

from collections.abc import Sequence

import zmq.asyncio

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.endpoint import rank_endpoint
from warmpath.indexer.follow.instance import Engine, Patience
from warmpath.indexer.follow.poll import Poller
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.follow.subscribe import Subscriber
from warmpath.process.tasks import Work


def connections(
    engine: Engine, ranks: Sequence[RankIngest], context: zmq.asyncio.Context, patience: Patience
) -> list[Work]:
    """Return the tasks that follow an engine."""
    if ENGINES[engine.engine].is_polled:
        numbered = dict(enumerate(ranks, engine.first_rank))
        poller = Poller(numbered, engine.events, patience)
        return [Work(f"fetching the events of pod {engine.pod}", poller.run, poller.failed)]
    works = []
    for number, rank in enumerate(ranks):
        events, replay = (
            rank_endpoint(endpoint, engine.first_rank + number) if endpoint else ""
            for endpoint in (engine.events, engine.replay)
        )
        subscriber = Subscriber(rank, context, events=events, replay=replay, patience=patience)
        name = f"following pod {engine.pod} rank {number}"
        works.append(Work(name, subscriber.run, rank.failed))
    return works
