"""What is asked of a real cluster, and of the master that sentinels name, while masters and slots change."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.indexer.shared.asked_server import answers, ask, connected
from tests.servers.redis_cluster import RedisCluster, RedisSentinel
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandFailedError,
    CommandRefusedError,
    Redis,
    Script,
    UnreachableError,
)
from warmpath.indexer.shared.redis.topology import slot_of

KEYS = [f"{{tag{number}}}:k" for number in range(64)]
ADD = Script("add", "return redis.call('SADD', KEYS[1], ARGV[1])")
BOTH = Script("both", "return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}")


@pytest.fixture
async def redis(redis_cluster: RedisCluster) -> AsyncIterator[Redis]:
    async with connected(redis_cluster.url) as redis:
        yield redis


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
    async with connected(f"redis-cluster://127.0.0.1:{redis_cluster.nodes[-1].port}") as redis:
        replies = await redis.run([Command(("SET", key, 1)) for key in KEYS], timeout=20)
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
    assert str(await ask(redis, "SET", "k", "1", timeout=1)).startswith("CLUSTERDOWN")
    owner.ask("CLUSTER", "ADDSLOTS", slot)
    await answers(redis, "SET", "k", "1", reply=b"OK", timeout=1)


async def test_no_node_at_all_is_an_error_for_each() -> None:
    with RedisCluster(masters=3, replicas=0) as cluster:
        async with connected(cluster.url) as redis:
            written = await redis.run([Command(("SET", key, 1)) for key in KEYS], timeout=20)
            assert written == [b"OK"] * 64
            for node in cluster.nodes:
                node.kill()
            for timeout in (0.2, 5.0):
                replies = await redis.run([Command(("GET", key)) for key in KEYS], timeout=timeout)
                assert all(isinstance(reply, UnreachableError) for reply in replies)


# Five processes that find each other in 2 s, for each test: `make test` has one kind of them.
@pytest.fixture(params=["redis", pytest.param("valkey", marks=pytest.mark.deep)])
def sentinel(request: pytest.FixtureRequest) -> Iterator[RedisSentinel]:
    with RedisSentinel(request.param) as sentinel:
        yield sentinel


@pytest.fixture
async def watched(sentinel: RedisSentinel) -> AsyncIterator[Redis]:
    async with connected(sentinel.url) as redis:
        yield redis


async def written(redis: Redis, key: str) -> None:
    await answers(redis, "SET", key, 1, reply=b"OK", timeout=2)


@pytest.mark.deep
@pytest.mark.parametrize("is_killed", [False, True])
async def test_the_new_master_is_written_to(
    watched: Redis, sentinel: RedisSentinel, is_killed: bool
) -> None:
    await written(watched, "before")
    assert watched.disruptions == 1
    change = sentinel.kill_master if is_killed else sentinel.fail_over
    master = await asyncio.to_thread(change)
    async with asyncio.timeout(60):
        # One that was replaced while it lives takes what comes until the sentinels have been asked.
        while not master.ask("EXISTS", "after"):
            await written(watched, "after")
    assert watched.disruptions >= 3


async def test_dead_sentinels_are_passed_over_and_named_where_none_is_left(
    watched: Redis, sentinel: RedisSentinel
) -> None:
    async with connected(sentinel.url.replace("/warm", "/cold")) as redis:
        assert "'cold': ERR No such master" in str(await ask(redis, "GET", "a"))
    for dead in sentinel.sentinels[:2]:
        dead.kill()
    await written(watched, "a")
    for dead in sentinel.sentinels[2:]:
        dead.kill()
    async with connected(sentinel.url) as late:
        reply = await ask(late, "GET", "a")
    assert isinstance(reply, UnreachableError)
    assert all(f":{dead.port}" in str(reply) for dead in sentinel.sentinels)


async def test_a_master_that_became_a_replica_is_not_taken_for_one(
    watched: Redis, sentinel: RedisSentinel
) -> None:
    await written(watched, "a")
    # The sentinels are not asked: they learn of it later, and set it right.
    old, other = sentinel.servers
    other.ask("REPLICAOF", "NO", "ONE")
    old.ask("REPLICAOF", "127.0.0.1", other.port)
    reply = await ask(watched, "SET", "b", 1, timeout=0.5)
    assert isinstance(reply, UnreachableError)
    assert other.ask("EXISTS", "b") == 0
