"""The schema of a prefix in Redis: a new one, another version's, none of ours, and servers that are not suitable."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.indexer.shared.asked_server import connected, ensure
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout import schema
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.schema import SchemaError, check_server, log_server_warnings
from warmpath.indexer.shared.redis.command import Redis, UnreachableError
from warmpath.process.command_line import version


@pytest.fixture
def names(prefix: str) -> KeyNames:
    return KeyNames(prefix)


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with connected(redis_server.url) as redis:
        yield redis


async def test_an_empty_prefix_is_given_this_schema(
    redis: Redis, redis_server: RedisServer, names: KeyNames
) -> None:
    await asyncio.gather(*(ensure(redis, names) for _ in range(9)))
    await ensure(redis, names)
    assert redis_server.facts("HGETALL", names.schema) == {
        "schema": "1",
        "buckets": "64",
        "segment": "64",
        "by": f"warmpath {version()}",
    }
    assert redis_server.ask("TTL", names.schema) == -1


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (
            "schema",
            "2",
            (
                f"has schema 2, buckets 64, segment 64 (begun by warmpath {version()}); "
                f"this is warmpath {version()}, which needs schema 1, buckets 64, segment 64. Give"
            ),
        ),
        ("buckets", "32", "has schema 1, buckets 32, segment 64"),
        ("segment", "128", "segment 128"),
    ],
)
async def test_another_versions_data_are_left_alone(
    redis: Redis, redis_server: RedisServer, names: KeyNames, field: str, value: str, says: str
) -> None:
    await ensure(redis, names)
    redis_server.ask("HSET", names.schema, field, value)
    with pytest.raises(SchemaError) as error:
        await ensure(redis, names)
    assert says in str(error.value)
    assert f"delete the keys {names.prefix}:*" in str(error.value)
    assert redis_server.facts("HGETALL", names.schema)[field] == value


async def test_both_versions_are_named_where_they_differ(
    redis: Redis, redis_server: RedisServer, names: KeyNames
) -> None:
    redis_server.ask(
        "HSET", names.schema, "schema", 2, "buckets", 64, "segment", 64, "by", "warmpath 0.9.0"
    )
    with pytest.raises(SchemaError) as error:
        await ensure(redis, names)
    assert "(begun by warmpath 0.9.0); this is warmpath " in str(error.value)
    assert redis_server.facts("HGETALL", names.schema)["by"] == "warmpath 0.9.0"


async def test_what_a_newer_version_adds_is_its_own_matter(
    redis: Redis, redis_server: RedisServer, names: KeyNames
) -> None:
    await ensure(redis, names)
    redis_server.ask("HSET", names.schema, "more", "x")
    await ensure(redis, names)


@pytest.mark.parametrize(
    "planted", [("SET", "x"), ("RPUSH", "x"), ("HSET", "schema", "x"), ("HSET", "buckets", "64")]
)
async def test_a_key_that_names_no_version_is_replaced(
    redis: Redis, redis_server: RedisServer, names: KeyNames, planted: tuple[str, ...]
) -> None:
    command, *words = planted
    redis_server.ask(command, names.schema, *words)
    await ensure(redis, names)
    assert redis_server.facts("HGETALL", names.schema)["segment"] == "64"


async def test_nobody_there_is_an_error() -> None:
    async with connected("redis://127.0.0.1:1") as redis:
        with pytest.raises(UnreachableError):
            await ensure(redis, KeyNames("x"))
        with pytest.raises(UnreachableError):
            await check_server(redis)


async def test_it_works_on_a_cluster(redis_cluster: RedisCluster, names: KeyNames) -> None:
    async with connected(redis_cluster.url) as redis:
        await ensure(redis, names)
        assert "appendonly" in (await check_server(redis))[0]


@pytest.mark.parametrize("binary", ["redis", "valkey"])
async def test_what_the_operator_should_know_of_a_server_is_said(
    binary: str, request: pytest.FixtureRequest
) -> None:
    server: RedisServer = request.getfixturevalue(f"{binary}_server")
    try:
        async with connected(server.url) as redis:
            [off] = await check_server(redis)
            assert off.startswith("appendonly is off")
            server.ask("CONFIG", "SET", "maxmemory", 1 << 30)
            assert await check_server(redis) == [off]
            server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            [policy, _] = await check_server(redis)
            limit = "at the limit of 1073741824 bytes"
            assert policy.startswith(f"maxmemory-policy is allkeys-lru: {limit}")
            server.ask("CONFIG", "SET", "appendonly", "yes")
            assert await check_server(redis) == [policy]
    finally:
        for setting in ("appendonly no", "maxmemory-policy noeviction", "maxmemory 0"):
            server.ask("CONFIG", "SET", *setting.split())


async def test_a_server_that_is_too_old_is_refused(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "OLDEST", (6, 3))
    with pytest.raises(
        SchemaError, match=r"version 6\.2\.14; the shared index needs 6\.3 or newer"
    ):
        await check_server(redis)


async def test_what_should_be_known_is_logged_once_when_the_server_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RedisServer() as server:
        server.kill()
        async with connected(server.url) as redis:
            logging_warnings = asyncio.create_task(log_server_warnings(redis, pause=0.01))
            await asyncio.to_thread(server.restart)
            await asyncio.wait_for(logging_warnings, 60)
    assert any("appendonly is off" in line for line in caplog.messages)


async def test_a_user_without_info_is_told_nothing(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("x")
    with RedisServer(
        users=("user default on nopass ~* &* +@all", "user joe on >x ~* +@all -info")
    ) as server:
        async with connected(server.url, user="joe", password_file=str(password)) as redis:
            assert await check_server(redis) == []
