"""Sockets and subscribers for the tests of what follows engines; they end with the test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import zmq.asyncio

from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.follow.instance import Patience
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.follow.subscribe import Subscriber

Run = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
Follow = Callable[..., RankIngest]


@pytest.fixture
async def context() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    """Run what follows an engine, which must not end before the test."""
    tasks: list[asyncio.Task[None]] = []

    def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)


@pytest.fixture
def follow(context: zmq.asyncio.Context, run: Run) -> Follow:
    """Subscribe to two endpoints; return the rank that is followed."""

    def begin(
        events: str, replay: str, *, replay_seconds: float = 10.0, **changes: object
    ) -> RankIngest:
        clock = asyncio.get_running_loop().time
        ingest = new_ingest(MemoryIndex, **{"stale_after": 0.1, "clock": clock} | changes)
        rank = ingest.add(source(topic="kv"))
        patience = Patience(replay_seconds, reconnect_seconds=0.01, max_frame_bytes=1 << 20)
        subscriber = Subscriber(rank, context, events=events, replay=replay, patience=patience)
        run(subscriber.run())
        return rank

    return begin
