"""Redis servers for tests: started once, empty for each test."""

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer

_NUMBERS = itertools.count()


@pytest.fixture
def prefix() -> str:
    """Return a prefix that no other test has."""
    return f"test-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture(scope="module")
def _redis_of_module() -> Iterator[RedisServer]:
    with RedisServer("redis") as server:
        yield server


@pytest.fixture
def redis_server(_redis_of_module: RedisServer) -> RedisServer:
    """Return a Redis 6.2 with nothing in it."""
    _redis_of_module.flush()
    return _redis_of_module


@pytest.fixture(scope="module")
def _valkey_of_module() -> Iterator[RedisServer]:
    with RedisServer("valkey") as server:
        yield server


@pytest.fixture
def valkey_server(_valkey_of_module: RedisServer) -> RedisServer:
    """Return a Valkey 9 with nothing in it."""
    _valkey_of_module.flush()
    return _valkey_of_module


@pytest.fixture(scope="session")
def _cluster_of_session() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(_cluster_of_session: RedisCluster) -> RedisCluster:
    """Return a healthy cluster of three masters with a replica each, with nothing in it."""
    _cluster_of_session.heal()
    _cluster_of_session.flush()
    return _cluster_of_session
