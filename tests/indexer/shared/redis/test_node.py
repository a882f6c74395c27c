"""A node that is connected to, and given up meanwhile."""

import asyncio

import pytest

from warmpath.indexer.shared.redis.command import Command
from warmpath.indexer.shared.redis.node import Node, NotSentError, Wire


async def test_who_waits_for_a_connection_that_is_given_up_is_told_and_not_cancelled() -> None:
    begun = asyncio.Event()

    async def dial() -> Wire:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    node = Node("a:1", dial, lambda: None)
    askers = [asyncio.create_task(node.ask([Command(("PING",))], [])) for _ in range(2)]
    await begun.wait()
    await node.close()
    for asker in askers:
        with pytest.raises(NotSentError, match="a:1: the client is closed"):
            await asker


async def test_who_stops_waiting_for_a_connection_leaves_it_to_others() -> None:
    begun, refused = asyncio.Event(), asyncio.Event()

    async def dial() -> Wire:
        begun.set()
        await refused.wait()
        raise NotSentError("it says no")

    node = Node("a:1", dial, lambda: None)
    first, second = (asyncio.create_task(node.ask([Command(("PING",))], [])) for _ in range(2))
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    refused.set()
    with pytest.raises(NotSentError, match="a:1: it says no"):
        await second
