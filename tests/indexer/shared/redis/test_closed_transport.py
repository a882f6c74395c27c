"""A connection whose transport is closed under it is a lost one, whatever the event loop says of it."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from tests.servers.certificates import Authority
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay
from warmpath.indexer.shared.redis.command import Command, Redis, UnreachableError
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.indexer.shared.redis.node import Node

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Stand:
    """A client of a server behind a relay."""

    def __init__(self, redis: Redis, relay: Relay) -> None:
        self.redis = redis
        self.relay = relay

    async def ask(self, size: int = 1) -> bytes | None:
        """Return what the server echoes; None where the client says that the server was not reached."""
        word = b"x" * size
        [reply] = await self.redis.run([Command(("ECHO", word))], timeout=0.3)
        assert reply == word or isinstance(reply, UnreachableError), reply
        return None if isinstance(reply, UnreachableError) else word

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The transport of the open connection."""
        node: Node = self.redis.topology._node  # type: ignore[attr-defined]
        assert node._link is not None
        transport: asyncio.WriteTransport = node._link._wire.transport  # type: ignore[attr-defined]
        return transport

    async def answers(self) -> None:
        async with asyncio.timeout(30):
            while not await self.ask():
                pass


@pytest.fixture(params=["plain", "tls"])
def place(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path
) -> Iterator[tuple[Relay, RedisSettings]]:
    authority = Authority(tmp_path)
    certificate = authority.certificate("server") if request.param == "tls" else None
    with Relay(redis_server.port, certificate=certificate) as relay:
        yield relay, RedisSettings(relay.url, ca=str(authority.ca) if certificate else "")


@pytest.mark.parametrize("turns", [0, 1, 5])
@pytest.mark.parametrize("is_waited_for", [False, True], ids=["idle", "waiting"])
@pytest.mark.parametrize(
    "close", [asyncio.WriteTransport.close, asyncio.WriteTransport.abort], ids=["closed", "aborted"]
)
@pytest.mark.parametrize("loop", LOOPS)
def test_whoever_asks_over_a_closed_transport_hears_that_nobody_was_reached(
    place: tuple[Relay, RedisSettings],
    loop: str,
    close: Callable[[asyncio.WriteTransport], None],
    turns: int,
    is_waited_for: bool,
) -> None:
    relay, settings = place

    async def go() -> None:
        redis = await connect(settings)
        try:
            await meet(Stand(redis, relay))
        finally:
            await redis.close()

    async def meet(stand: Stand) -> None:
        await stand.answers()
        asked = []
        if is_waited_for:
            stand.relay.pause()
            asked += [asyncio.create_task(stand.ask(size)) for size in (1, 1 << 22)]
            await asyncio.sleep(0)
        getattr(stand.transport, close.__name__)()
        for _ in range(turns):
            await asyncio.sleep(0)
        asked += [asyncio.create_task(stand.ask(size)) for size in (1, 1 << 22, 1)]
        await asyncio.gather(*asked)
        stand.relay.resume()
        await stand.answers()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(go())
