"""Events and replays over IPv4 and IPv6, by address and by name: real sockets of a simulated engine."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import zmq.asyncio

from tests.indexer.engine_model import EngineModel
from tests.indexer.follow.conftest import Follow
from tests.waiting import until
from warmpath.cli.deployment.check import Check, Placed
from warmpath.cli.deployment.inspect import check_events
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.dial import CONNECTED, GONE, dial, monitored
from warmpath.indexer.trust import Level
from warmpath.lab.simworker.events.faulty_outlet import FaultyOutlet
from warmpath.lab.simworker.events.publisher import Journal, Publisher
from warmpath.router.config.schema import PodSpec

BOTH, FOUR, SIX = ("::1", "127.0.0.1"), ("127.0.0.1",), ("::1",)


class System:
    """What the system says of the name `engine.test`."""

    addresses: Sequence[str] = ()

    def getaddrinfo(self, host: Any, port: Any, *more: Any, **named: Any) -> list[Any]:
        if host != "engine.test":
            return real(host, port, *more, **named)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [entry for one in self.addresses for entry in real(one, port, *more, **named)]


real: Callable[..., list[Any]] = socket.getaddrinfo


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    system = System()
    monkeypatch.setattr(socket, "getaddrinfo", system.getaddrinfo)
    return system


@contextlib.asynccontextmanager
async def engine(
    context: zmq.asyncio.Context, bound: str, port: int | str = "*"
) -> AsyncIterator[Publisher]:
    publisher = Publisher(
        context,
        f"tcp://{bound}:{port}",
        f"tcp://{bound}:*",
        topic="kv",
        journal=Journal(100),
        outlet=FaultyOutlet(None),
        replays_topic=True,
        clock=time.monotonic,
    )
    serving = asyncio.create_task(publisher.serve_replay())
    try:
        yield publisher
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        publisher.close()


def at(host: str, endpoint: str) -> str:
    return f"tcp://{host}:{endpoint.rpartition(':')[2]}"


async def doctor(context: zmq.asyncio.Context, events: str, replay: str) -> list[Check]:
    spec = PodSpec(id="p", model="m", address="h:1", events=events, replay=replay)
    return [one async for one in check_events(Placed(spec, "pods[0]"), context, 10.0)]


def endpoints(host: str, publisher: Publisher) -> tuple[str, str]:
    return at(host, publisher.endpoint), at(host, publisher.replay_endpoint)


@pytest.mark.parametrize(
    ("bound", "host", "addresses"),
    [
        ("[::1]", "[::1]", ()),
        ("[::]", "[::1]", ()),
        ("*", "[::1]", ()),
        ("*", "127.0.0.1", ()),
        ("[::1]", "engine.test", SIX),
        ("[::1]", "engine.test", BOTH),
        ("127.0.0.1", "engine.test", FOUR),
        ("127.0.0.1", "engine.test", BOTH),
        ("*", "engine.test", BOTH),
    ],
)
async def test_an_engine_is_followed_over_whichever_protocol_it_listens_on(
    context: zmq.asyncio.Context, follow: Follow, system: System,
    bound: str, host: str, addresses: Sequence[str],
) -> None:  # fmt: skip
    system.addresses = addresses
    model = EngineModel(buffer_steps=100)
    async with engine(context, bound) as publisher:
        publisher.publish(model.store((0, 1))[1])
        rank = follow(*endpoints(host, publisher))
        await until(lambda: rank.trust.level is Level.EXACT)
        assert rank.state.held()[Tier.GPU, 0] == model.held()
        publisher.publish(model.store((0, 1, 2))[1])
        await until(lambda: rank.sequence == 1)
        assert rank.state.held()[Tier.GPU, 0] == model.held()
        assert rank.counts()["duplicates"] == 0
        found = await doctor(context, *endpoints(host, publisher))
        assert [one.verdict for one in found] == ["ok", "ok"]


async def test_a_name_that_gets_an_address_later_is_followed_then(
    context: zmq.asyncio.Context, follow: Follow, system: System, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("warmpath.indexer.follow.subscribe.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("warmpath.indexer.follow.subscribe.NAME_SECONDS", 0.05)
    async with engine(context, "[::1]") as publisher:
        rank = follow(*endpoints("engine.test", publisher))
        await until(lambda: "Name or service not known" in caplog.text)
        system.addresses = FOUR  # where nothing listens
        await asyncio.sleep(0)
        assert not rank.is_connected
        system.addresses = SIX
        await until(lambda: rank.trust.level is Level.EXACT)
    assert caplog.text.count("Name or service not known") == 1


async def test_a_place_that_only_closes_connections_ends_none_of_another(
    context: zmq.asyncio.Context, system: System
) -> None:
    system.addresses = BOTH
    closed = 0

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal closed
        writer.close()
        await writer.wait_closed()
        closed += 1

    live = context.socket(zmq.SUB)
    live.setsockopt(zmq.RECONNECT_IVL, 1)
    monitor = live.get_monitor_socket(int(CONNECTED | GONE))
    async with engine(context, "127.0.0.1") as publisher:
        port = publisher.endpoint.rpartition(":")[2]
        server = await asyncio.start_server(close, "::1", int(port))
        places = await dial(live, at("engine.test", publisher.endpoint))
        place = await monitored(CONNECTED, monitor, places)
        assert place == f"tcp://127.0.0.1:{port}"
        before = closed
        await until(lambda: closed > before + 2)
    assert await monitored(GONE, monitor, (place,)) == place
    live.disable_monitor()
    monitor.close(linger=0)
    live.close(linger=0)
    # Nobody connects any more; a connection that was accepted last is closed by now.
    before = closed
    with socket.create_connection(("::1", int(port))):
        await until(lambda: closed > before)
    server.close()


async def test_problems_of_a_name_that_alternate_are_said_once(
    context: zmq.asyncio.Context, follow: Follow, system: System, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("warmpath.indexer.follow.subscribe.RETRY_SECONDS", 0.001)
    monkeypatch.setattr("warmpath.indexer.follow.subscribe.NAME_SECONDS", 0.02)
    asked = 0

    def alternate(host: Any, *more: Any, **named: Any) -> list[Any]:
        nonlocal asked
        asked += host == "engine.test"
        if asked % 2:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return system.getaddrinfo(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", alternate)
    async with engine(context, "127.0.0.1") as publisher:
        rank = follow(*endpoints("engine.test", publisher))
        await until(lambda: asked > 9)
        assert len(caplog.records) == 2
        system.addresses = BOTH
        await until(lambda: rank.trust.level is Level.EXACT)


async def test_the_doctor_blames_a_name_without_address_on_the_configuration(
    context: zmq.asyncio.Context, system: System
) -> None:
    assert not system.addresses
    found = await doctor(context, "tcp://engine.test:1", "tcp://engine.test:2")
    assert [one.change for one in found] == ["pods[0].events", "pods[0].replay"]
    assert all("there is no such host" in one.text for one in found)
