"""Servers for the tests of the shared index."""

from collections.abc import Iterator

import pytest

from tests.indexer.shared.asked_server import AskedServer
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    found: RedisServer = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def asked_server(redis_server: RedisServer) -> Iterator[AskedServer]:
    asked = AskedServer(redis_server)
    yield asked
    asked.client.close()


@pytest.fixture
def relay(redis_server: RedisServer) -> Iterator[Relay]:
    with Relay(redis_server.port) as relay:
        yield relay
