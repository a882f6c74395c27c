"""Refused calls in the log."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.router.running_router import metrics_page, running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2
from warmpath.proto.pb.warmpath.v1.router_pb2_grpc import RouterStub
from warmpath.router.assemble import calls
from warmpath.router.assemble.calls import Refused
from warmpath.router.calls import server
from warmpath.router.config.read import parse


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "REFUSAL_SECONDS", 0.001)


@asynccontextmanager
async def telling(look: Callable[[], list[Refused]]) -> AsyncIterator[None]:
    task = asyncio.create_task(calls._keep_telling(look))
    await asyncio.sleep(0.05)
    yield
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.usefixtures("looks")
async def test_calls_that_were_refused_since_the_last_look_are_told_by_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = {"limits.one": 7, "limits.two": 0}
    async with telling(lambda: [Refused(*one, "a-section") for one in refused.items()]):
        assert not caplog.messages, "those were refused before"
        for at, (limit, count) in enumerate((("limits.one", 3), ("limits.two", 1))):
            refused[limit] += count
            while len(caplog.messages) == at:
                await asyncio.sleep(0.001)
    assert caplog.messages == [
        "3 calls were refused by limits.one: docs/guides/operate.md#a-section",
        "1 calls were refused by limits.two: docs/guides/operate.md#a-section",
    ]


@pytest.mark.usefixtures("looks")
async def test_what_is_refused_may_be_connections(caplog: pytest.LogCaptureFixture) -> None:
    count = 0
    more = "a-section", "connections", "10.0.0.7:51234"
    async with telling(lambda: [Refused("a-limit", count, *more)]):
        count = 2
        while not caplog.messages:
            await asyncio.sleep(0.001)
    [told] = caplog.messages
    assert told == (
        "2 connections were refused by a-limit, the last one from 10.0.0.7:51234: "
        "docs/guides/operate.md#a-section"
    )


@pytest.mark.usefixtures("looks")
async def test_a_connection_beyond_the_most_busy_ones_of_its_address_is_counted_and_told_with_its_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = '[[models]]\nname = "demo"\n[server.http2]\nmax-connections = 1\n'
    async with running_router(tmp_path, tables, transport="nghttp2") as (router, channel):
        stream = RouterStub(channel).ScoreStream()
        await stream.write(router_pb2.ScoreRequest())
        await stream.read()
        host, _, port = router.address.rpartition(":")
        reader, second = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        text = await metrics_page(router.http_address)
        assert "warmpath_refused_connections_total 1.0" in text
        own, port = second.get_extra_info("sockname")
        limit = "server.http2.max-connections (1)"
        told = f"1 connections were refused by {limit}, the last one from {own}:{port}: "
        while not any(line.startswith(told) for line in caplog.messages):
            await asyncio.sleep(0.01)
        second.close()
        stream.cancel()


@pytest.mark.parametrize(
    ("most", "limit"),
    [
        (3000, "server.http2.max-connections (3000)"),
        (9000, "half of the file descriptors (5000)"),
    ],
)
def test_the_limit_of_connections_is_the_lesser_and_is_named(
    most: int, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HALF_OF_DESCRIPTORS", 5000)
    text = f"[server.http2]\nmax-connections = {most}\n[[models]]\nname = 'm'\n"
    config = parse(text, "text")
    assert server.limit_of_connections(config) == limit
    assert server.limits_of(config).connections == min(most, 5000)
