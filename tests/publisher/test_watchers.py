"""Watchers that never read keep no router out, over real connections; and the publisher's health."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace

import grpc.aio
import pytest
import zmq
import zmq.asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from warmpath.indexer.keys.key import fingerprint
from warmpath.lab.local.ports import HeldPorts
from warmpath.process.listener import GRPC_OPTIONS
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2_grpc
from warmpath.publisher import assemble
from warmpath.publisher.assemble import Publishing, Settings, publishing
from warmpath.publisher.watch_server import _client

KEYSPACE = fingerprint("m", "")
CHANGE = pb.Change(added=pb.Keys(keys=bytes(512 << 10)))


@pytest.fixture
async def published(held_port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Publishing]:
    monkeypatch.setattr(assemble, "SLOW_SECONDS", 1.0)
    async with publishing(settings(held_port)) as running:
        yield running


def settings(port: int, listen: str = "[::]:0", ranks: int = 1) -> Settings:
    return Settings(
        pod="p", model="m", engine="vllm", events=f"tcp://127.0.0.1:{port}", ranks=ranks, listen=listen,
        metrics_listen="", journal_bytes=64 << 20, max_watchers=4,
    )  # fmt: skip


def port(running: Publishing) -> str:
    return running.address.rpartition(":")[2]


async def watching(
    stack: AsyncExitStack, address: str, count: int, *, epoch: str = "", sequence: int = 0
) -> list[grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.WatchResponse]]:
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
    stub = cache_watch_pb2_grpc.CacheWatchStub(channel)
    request = pb.WatchRequest(keyspace=KEYSPACE, epoch=epoch, sequence=sequence)
    return [stub.Watch(request) for _ in range(count)]  # type: ignore[misc]


async def until_held(running: Publishing, count: int) -> None:
    while len(running.server.places) != count:
        await asyncio.sleep(0.005)


async def test_a_client_that_takes_every_place_keeps_no_other_one_out(
    published: Publishing,
) -> None:
    async with AsyncExitStack() as stack:
        greedy = await watching(stack, f"127.0.0.1:{port(published)}", 4)
        await until_held(published, 4)
        (router,) = await watching(stack, f"[::1]:{port(published)}", 1)
        hello = await router.read()
        assert hello.HasField("hello")  # type: ignore[union-attr]
        assert len(published.server.places) == 4
        ended = asyncio.FIRST_COMPLETED
        done, _ = await asyncio.wait(
            [asyncio.create_task(_end(call)) for call in greedy], return_when=ended
        )
        code, details = done.pop().result()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--max-watchers" in details
        assert published.server.yielded == 1


async def test_a_watcher_that_comes_back_is_told_which_change_is_the_newest(
    published: Publishing,
) -> None:
    journal = published.cache.journal
    published.cache.collect()
    for _ in range(3):
        journal.add(published.cache.states()[0], [])
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{port(published)}"
        (router,) = await watching(stack, address, 1, epoch=journal.epoch, sequence=1)
        response = await router.read()
        assert not response.hello.snapshot  # type: ignore[union-attr]
        assert response.hello.newest == journal.sequence > 1  # type: ignore[union-attr]


async def _read_snapshot(call: grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.WatchResponse]) -> None:
    while not (await call.read()).HasField("end"):  # type: ignore[union-attr]
        pass


async def _end(
    call: grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.WatchResponse],
) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return await call.code(), await call.details() or ""


@pytest.mark.deep
async def test_watchers_that_never_read_lose_their_places_to_routers_of_the_same_host(
    published: Publishing,
) -> None:
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{port(published)}"
        silent = await watching(stack, address, 4)
        for call in silent:
            await _read_snapshot(call)
        journal = published.cache.journal
        before = journal.sequence
        for _ in range(64):
            journal.add(pb.RankState(rank=0), [CHANGE])
        published.server.wake()
        await until_held(published, 0)
        assert published.server.slow == 4
        (router,) = await watching(stack, address, 1, sequence=before, epoch=journal.epoch)
        reached = before
        while reached < before + 64:
            response = await router.read()
            reached = max(reached, response.delta.sequence)  # type: ignore[union-attr]
        assert published.server.slow == 4, "who reads is not ended"
        for call in silent:
            call.cancel()


SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""With this a client of HTTP/2 begins."""


def change_option(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    options = dict(GRPC_OPTIONS)
    assert name in options
    monkeypatch.setattr(assemble, "GRPC_OPTIONS", [*(options | {name: value}).items()])


async def _connect(
    stack: AsyncExitStack, running: Publishing
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
    """Return a connection of HTTP/2, and whether the server takes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port(running)))
    stack.callback(writer.close)
    with contextlib.suppress(ConnectionError):
        writer.write(SETTINGS)
        return reader, writer, bool(await reader.read(1))
    return reader, writer, False


async def test_connections_have_a_bound_and_who_leaves_makes_room(
    monkeypatch: pytest.MonkeyPatch, held_port: int
) -> None:
    change_option(monkeypatch, "grpc.max_allowed_incoming_connections", 4)
    async with publishing(settings(held_port)) as running, AsyncExitStack() as stack:
        taken = [await _connect(stack, running) for _ in range(4)]
        assert all(is_taken for _, _, is_taken in taken)
        _, _, is_taken = await _connect(stack, running)
        assert not is_taken
        taken[0][1].close()
        while not is_taken:
            _, _, is_taken = await _connect(stack, running)


async def test_a_connection_without_calls_makes_room(
    monkeypatch: pytest.MonkeyPatch, held_port: int
) -> None:
    change_option(monkeypatch, "grpc.max_connection_idle_ms", 300)
    async with publishing(settings(held_port)) as running, AsyncExitStack() as stack:
        reader, _, is_taken = await _connect(stack, running)
        assert is_taken
        await reader.read()


async def test_a_connection_that_says_nothing_ends(
    monkeypatch: pytest.MonkeyPatch, held_port: int
) -> None:
    change_option(monkeypatch, "grpc.server_handshake_timeout_ms", 200)
    async with publishing(settings(held_port)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port(running)))
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 10):
                pass
        writer.close()


Status = health_pb2.HealthCheckResponse


@pytest.fixture
async def health(two_ports: int) -> AsyncIterator[tuple[int, health_pb2_grpc.HealthStub]]:
    async with (
        publishing(settings(two_ports, "127.0.0.1:0", ranks=2)) as publisher,
        grpc.aio.insecure_channel(publisher.address) as channel,
    ):
        yield two_ports, health_pb2_grpc.HealthStub(channel)


@pytest.fixture
def two_ports(held_ports: HeldPorts) -> int:
    """Return the first of two ports, those of the ranks."""
    return held_ports.take(1)


async def asked(stub: health_pb2_grpc.HealthStub) -> int:
    return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)).status


async def until(stub: health_pb2_grpc.HealthStub, status: int) -> None:
    while await asked(stub) != status:
        await asyncio.sleep(0.01)


async def test_a_publisher_serves_while_it_follows_every_rank_of_its_engine(
    health: tuple[int, health_pb2_grpc.HealthStub],
) -> None:
    port, stub = health
    assert await asked(stub) == Status.NOT_SERVING, "there is no engine yet"
    told = aiter(stub.Watch(health_pb2.HealthCheckRequest()))
    assert (await anext(told)).status == Status.NOT_SERVING
    with zmq.asyncio.Context() as context:
        ranks = [context.socket(zmq.PUB) for _ in range(2)]
        ranks[0].bind(f"tcp://127.0.0.1:{port}")
        ranks[1].bind(f"tcp://127.0.0.1:{port + 1}")
        await until(stub, Status.SERVING)
        assert (await anext(told)).status == Status.SERVING
        ranks[1].close(linger=0)
        await until(stub, Status.NOT_SERVING)
        assert (await anext(told)).status == Status.NOT_SERVING
        ranks[0].close(linger=0)


async def test_a_request_longer_than_any_a_router_makes_is_not_read(
    health: tuple[int, health_pb2_grpc.HealthStub],
) -> None:
    _, stub = health
    question = health_pb2.HealthCheckRequest(service="x" * (1 << 20))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Check(question, timeout=10)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.aio.AioRpcError, match="no such service"):
        await stub.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=10)


@pytest.mark.parametrize(
    ("peer", "shown", "client"),
    [
        ("ipv4:10.0.0.1:5000", {}, "ipv4:10.0.0.1"),
        ("ipv4:10.0.0.1:5000", {"x509_subject": [b"CN=a"]}, "CN=a"),
        ("ipv4:10.0.0.1:5000", {"x509_common_name": [b"a"]}, "a"),
        ("ipv6:%5B::1%5D:5000", {}, "ipv6:%5B::1%5D"),
        ("unix:", {}, "unix"),
    ],
)
def test_a_client_is_its_certificate_or_else_its_host(
    peer: str, shown: dict[str, list[bytes]], client: str
) -> None:
    context = SimpleNamespace(peer=lambda: peer, auth_context=lambda: shown)
    assert _client(context) == client  # type: ignore[arg-type]
