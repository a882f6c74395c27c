"""What is asked of a real cluster while masters fail over and slots move."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.servers.redis_cluster import RedisCluster
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandFailedError,
    CommandRefusedError,
    Redis,
    Script,
    UnreachableError,
)
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.indexer.shared.redis.topology import slot_of

KEYS = [f"{{tag{number}}}:k" for number in range(64)]
ADD = Script("add", "return redis.call('SADD', KEYS[1], ARGV[1])")
BOTH = Script("both", "return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}")


@pytest.fixture
async def redis(redis_cluster: RedisCluster) -> AsyncIterator[Redis]:
    client = await connect(RedisSettings(redis_cluster.url))
    yield client
    await client.close()


class Adding:
    """Adds numbers to sets all over the cluster for as long as something else goes on."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.sure: dict[str, set[int]] = {key: set() for key in KEYS}
        self.unsure = 0
        self.problems: list[object] = []

    async def while_(self, work: Any, *, timeout: float = 20.0) -> Any:
        doing = asyncio.create_task(asyncio.to_thread(work))
        number = 0
        while not doing.done() or number < 3:
            number += 1
            await self._add(number, timeout)
        await self._add(number + 1, timeout)
        return await doing

    async def _add(self, number: int, timeout: float) -> None:
        replies = await self._redis.run(
            [Call(ADD, (key,), (number,)) for key in KEYS], timeout=timeout
        )
        for key, reply in zip(KEYS, replies, strict=True):
            if isinstance(reply, int):
                self.sure[key].add(number)
            elif isinstance(reply, UnreachableError):
                self.unsure += 1
            else:
                self.problems.append(reply)
        if any(isinstance(reply, UnreachableError) for reply in replies):
            await asyncio.sleep(0.02)

    async def are_all_there(self) -> bool:
        replies = await self._redis.run([Command(("SMEMBERS", key)) for key in KEYS], timeout=20)
        return all(
            self.sure[key] <= {int(member) for member in reply}
            for key, reply in zip(KEYS, replies, strict=True)
        )


def test_slots_are_those_of_the_servers(redis_cluster: RedisCluster) -> None:
    node = redis_cluster.nodes[0]
    for key in (*KEYS, "a", "", "{}x", "a{b}c", "a{b", "{{a}}", "}{x}", "é{ü}", "a{}{b}"):
        assert slot_of(key.encode()) == node.ask("CLUSTER", "KEYSLOT", key)


async def test_keys_of_all_nodes_are_asked_at_once(redis: Redis) -> None:
    assert await redis.run([Command(("SET", key, key)) for key in KEYS], timeout=20) == [b"OK"] * 64
    # Each master at least; more where other tests have made masters of the nodes that were given.
    reached = redis.disruptions
    assert reached >= 3
    replies = await redis.run([Command(("GET", key)) for key in KEYS], timeout=20)
    assert replies == [key.encode() for key in KEYS]
    assert redis.disruptions == reached


async def test_one_seed_is_enough(redis_cluster: RedisCluster) -> None:
    client = await connect(
        RedisSettings(f"redis-cluster://127.0.0.1:{redis_cluster.nodes[-1].port}")
    )
    replies = await client.run([Command(("SET", key, 1)) for key in KEYS], timeout=20)
    await client.close()
    assert replies == [b"OK"] * 64


async def test_keys_of_two_slots_in_one_call_are_refused(redis: Redis) -> None:
    first, second = "{a}", "{b}"
    [reply] = await redis.run([Call(BOTH, (first, second))], timeout=20)
    assert isinstance(reply, CommandRefusedError)
    assert str(reply).startswith("CROSSSLOT")


async def test_a_fail_over_in_order_is_not_felt_and_is_counted(
    redis: Redis, redis_cluster: RedisCluster
) -> None:
    adding = Adding(redis)
    await adding.while_(lambda: None)
    before = redis.disruptions
    master = await asyncio.to_thread(redis_cluster.master_of, KEYS[0])
    await adding.while_(lambda: redis_cluster.fail_over(master))
    assert adding.problems == []
    assert await adding.are_all_there()
    assert redis.disruptions > before


@pytest.mark.deep
async def test_a_killed_master_costs_errors_only_until_its_replica_serves(
    redis: Redis, redis_cluster: RedisCluster
) -> None:
    adding = Adding(redis)
    await adding.while_(lambda: None)
    before = redis.disruptions
    master = await asyncio.to_thread(redis_cluster.master_of, KEYS[0])
    lost = {key for key in KEYS if redis_cluster.master_of(key) is master}
    assert 0 < len(lost) < 64
    await adding.while_(lambda: redis_cluster.kill_master(master), timeout=0.3)
    assert all(str(problem).startswith("CLUSTERDOWN") for problem in adding.problems)
    assert adding.unsure
    assert redis.disruptions > before
    async with asyncio.timeout(60):
        while True:
            replies = await redis.run([Call(ADD, (key,), (-1,)) for key in KEYS], timeout=5)
            if all(isinstance(reply, int) for reply in replies):
                break
            await asyncio.sleep(0.02)


@pytest.mark.deep
async def test_slots_that_move_are_followed(redis: Redis, redis_cluster: RedisCluster) -> None:
    adding = Adding(redis)
    await adding.while_(lambda: None)
    slots = [slot_of(key.encode()) for key in KEYS[:6]]

    def move() -> None:
        for slot in slots:
            source = redis_cluster.master_of_slot(slot)
            masters = [node for node in redis_cluster.nodes if redis_cluster.is_master(node)]
            redis_cluster.migrate(slot, masters[masters.index(source) - 1])

    before = redis.disruptions
    await adding.while_(move)
    assert (adding.problems, adding.unsure) == ([], 0)
    assert await adding.are_all_there()
    assert redis.disruptions > before


async def test_a_slot_on_the_move_is_asked_for_where_its_keys_are(
    redis: Redis, redis_cluster: RedisCluster
) -> None:
    key, other, new = "{mover}a", "{mover}b", "{mover}c"
    slot = slot_of(key.encode())
    await redis.run([Command(("SET", key, 1)), Command(("SET", other, 2))], timeout=20)
    source = redis_cluster.master_of_slot(slot)
    target = next(n for n in redis_cluster.nodes if redis_cluster.is_master(n) and n is not source)
    redis_cluster.open_migration(slot, target)
    try:
        source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        asked = [
            Command(("GET", key)),
            Command(("GET", other)),
            Call(ADD, (new,), (7,)),
            Command(("SMEMBERS", new)),
        ]
        assert await redis.run(asked, timeout=20) == [b"1", b"2", 1, [b"7"]]
        # Keys on both sides: the cluster wants it tried again, until the time is up or they are one.
        [reply] = await redis.run([Call(BOTH, (key, other))], timeout=0.3)
        assert isinstance(reply, CommandFailedError)
        task = asyncio.create_task(redis.run([Call(BOTH, (key, other))], timeout=20))
        await asyncio.to_thread(redis_cluster.move_keys, slot, source, target)
        assert await task == [[b"1", b"2"]]
    finally:
        redis_cluster.move_keys(slot, source, target)
        redis_cluster.end_migration(slot, target)
    assert await redis.run(asked[:2], timeout=20) == [b"1", b"2"]


async def test_a_slot_that_nobody_served_for_a_moment_is_looked_up_again(
    redis: Redis, redis_cluster: RedisCluster
) -> None:
    slot = int(redis_cluster.nodes[0].ask("CLUSTER", "KEYSLOT", "k"))
    owner = redis_cluster.master_of_slot(slot)
    for node in [owner, *(node for node in redis_cluster.nodes if node is not owner)]:
        node.ask("CLUSTER", "DELSLOTS", slot)
    [reply] = await redis.run([Command(("SET", "k", "1"))], timeout=1)
    assert str(reply).startswith("CLUSTERDOWN")
    owner.ask("CLUSTER", "ADDSLOTS", slot)
    async with asyncio.timeout(60):
        while await redis.run([Command(("SET", "k", "1"))], timeout=1) != [b"OK"]:
            await asyncio.sleep(0.01)


async def test_no_node_at_all_is_an_error_for_each() -> None:
    with RedisCluster(masters=3, replicas=0) as cluster:
        client = await connect(RedisSettings(cluster.url))
        assert (
            await client.run([Command(("SET", key, 1)) for key in KEYS], timeout=20) == [b"OK"] * 64
        )
        for node in cluster.nodes:
            node.kill()
        for timeout in (0.2, 5.0):
            replies = await client.run([Command(("GET", key)) for key in KEYS], timeout=timeout)
            assert all(isinstance(reply, UnreachableError) for reply in replies)
        await client.close()
