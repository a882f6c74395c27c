"""What is asked of the master that sentinels name, while it changes."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.servers.redis_sentinel import RedisSentinel
from warmpath.indexer.shared.redis.command import Command, Redis, UnreachableError
from warmpath.indexer.shared.redis.connect import RedisSettings, connect


# Five processes that find each other in 2 s, for each test: `make test` has one kind of them.
@pytest.fixture(params=["redis", pytest.param("valkey", marks=pytest.mark.deep)])
def sentinel(request: pytest.FixtureRequest) -> Iterator[RedisSentinel]:
    with RedisSentinel(request.param) as sentinel:
        yield sentinel


@pytest.fixture
async def redis(sentinel: RedisSentinel) -> AsyncIterator[Redis]:
    client = await connect(RedisSettings(sentinel.url))
    yield client
    await client.close()


async def written(redis: Redis, key: str) -> None:
    """Write until it is answered well."""
    async with asyncio.timeout(60):
        while (await redis.run([Command(("SET", key, 1))], timeout=2))[0] != b"OK":
            await asyncio.sleep(0.01)


@pytest.mark.deep
@pytest.mark.parametrize("is_killed", [False, True])
async def test_the_new_master_is_written_to(
    redis: Redis, sentinel: RedisSentinel, is_killed: bool
) -> None:
    await written(redis, "before")
    assert redis.disruptions == 1
    change = sentinel.kill_master if is_killed else sentinel.fail_over
    master = await asyncio.to_thread(change)
    async with asyncio.timeout(60):
        # One that was replaced while it lives takes what comes until the sentinels have been asked.
        while not master.ask("EXISTS", "after"):
            await written(redis, "after")
    assert redis.disruptions >= 3


async def test_dead_sentinels_are_passed_over(redis: Redis, sentinel: RedisSentinel) -> None:
    for dead in sentinel.sentinels[:2]:
        dead.kill()
    await written(redis, "a")


async def test_no_sentinel_is_an_error_that_names_them(
    redis: Redis, sentinel: RedisSentinel
) -> None:
    for dead in sentinel.sentinels:
        dead.kill()
    [reply] = await redis.run([Command(("GET", "a"))], timeout=20)
    assert isinstance(reply, UnreachableError)
    assert all(f":{dead.port}" in str(reply) for dead in sentinel.sentinels)


async def test_a_name_that_no_sentinel_knows_is_said(sentinel: RedisSentinel) -> None:
    client = await connect(RedisSettings(sentinel.url.replace("/warm", "/cold")))
    [reply] = await client.run([Command(("GET", "a"))], timeout=20)
    await client.close()
    assert "'cold': ERR No such master" in str(reply)


async def test_a_master_that_became_a_replica_is_not_taken_for_one(
    redis: Redis, sentinel: RedisSentinel
) -> None:
    await written(redis, "a")
    # The sentinels are not asked: they learn of it later, and set it right.
    old, other = sentinel.servers
    other.ask("REPLICAOF", "NO", "ONE")
    old.ask("REPLICAOF", "127.0.0.1", other.port)
    [reply] = await redis.run([Command(("SET", "b", 1))], timeout=0.5)
    assert isinstance(reply, UnreachableError)
    assert other.ask("EXISTS", "b") == 0
