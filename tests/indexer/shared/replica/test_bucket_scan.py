"""A pass over all buckets finds every key that is there from its beginning to its end."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.indexer.shared.asked_server import connected
from tests.indexer.shared.written_pod import WrittenPod
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Command, Redis
from warmpath.indexer.shared.redis.topology import slot_of
from warmpath.indexer.shared.replica import run
from warmpath.indexer.shared.replica.run import Scan

SLOT = 7 << 16
OTHER_SLOT = 8 << 16


class Bucketed:
    """Some buckets, what is in them, and a pass that is made over them."""

    def __init__(self, redis: Redis, prefix: str, buckets: int) -> None:
        self.redis = redis
        self.names = KeyNames(prefix, buckets=buckets)
        self.pod = WrittenPod(redis, self.names, "p", 7)
        self.found: dict[int, set[int]] = {}

    async def add(self, slot: int, segment: int, keys: Sequence[int]) -> None:
        await self.pod.change({segment: (keys, ())}, slot)

    async def page(self, one: Scan) -> None:
        """Read the next pages."""
        replies = await self.redis.run(one.asked(self.redis.disruptions), timeout=10)
        for keys in one.take(replies, self.redis.disruptions):
            for slot, parts in keys.items():
                self.found.setdefault(slot, set()).update(*(part.tolist() for part in parts))

    async def finish(self, one: Scan) -> None:
        while not one.is_over:
            await self.page(one)
            assert not one.problem


@asynccontextmanager
async def bucketed(url: str, prefix: str, buckets: int = 1) -> AsyncIterator[Bucketed]:
    async with connected(url) as redis:
        one = Bucketed(redis, prefix, buckets)
        await one.pod.fence()
        yield one


def segment_keys(segment: int, count: int = 3) -> range:
    return range(segment * 1000, segment * 1000 + count)


async def test_every_wanted_key_of_every_bucket_is_found_and_no_other(
    redis_server: RedisServer, prefix: str
) -> None:
    async with bucketed(redis_server.url, prefix, buckets=16) as one:
        for segment in range(1, 400):
            await one.add(SLOT if segment % 3 else OTHER_SLOT, segment, segment_keys(segment))
            if not segment % 5:
                await one.add(SLOT, segment, segment_keys(segment, 2))
        await one.finish(Scan(one.names, [SLOT]))
        wanted = {key for n in range(1, 400) if n % 3 for key in segment_keys(n)}
        wanted |= {key for n in range(5, 400, 5) for key in segment_keys(n, 2)}
        assert one.found == {SLOT: wanted}


@pytest.mark.deep
async def test_a_segment_that_is_spilled_during_the_pass_is_found_whole(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FIELDS", 4)
    async with bucketed(redis_server.url, prefix) as one:
        # Past 512 records a segment is spilled: one before the pass, others after each of its pages.
        held = {1: list(range(600)), 2: list(range(10_000, 10_400))}
        held |= {n: list(segment_keys(n * 100, 450)) for n in range(3, 30)}
        for segment, keys in held.items():
            await one.add(SLOT, segment, keys)
        one_pass = Scan(one.names, [SLOT])
        segment = 3
        while not one_pass.is_over:
            await one.page(one_pass)
            for _ in range(4):
                if segment < 30:
                    await one.add(
                        OTHER_SLOT,
                        segment,
                        range(10**9 + segment * 1000, 10**9 + segment * 1000 + 100),
                    )
                    segment += 1
        assert segment == 30
        assert one.found == {SLOT: {key for keys in held.values() for key in keys}}


async def test_a_bucket_that_moves_to_another_node_during_the_pass_is_begun_again(
    redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FIELDS", 20)
    async with bucketed(redis_cluster.url, prefix) as one:
        for segment in range(1, 1000):
            await one.add(SLOT, segment, segment_keys(segment))
        key_slot = slot_of(one.names.bucket(0).encode())
        source = redis_cluster.master_of_slot(key_slot)
        masters = [node for node in redis_cluster.nodes if redis_cluster.is_master(node)]
        target = next(node for node in masters if node is not source)
        # All nodes are reached, so that no new connection tells of it.
        probes = [Command(("EXISTS", f"{prefix}{number}")) for number in range(200)]
        await one.redis.run(probes, timeout=10)
        one_pass = Scan(one.names, [SLOT])
        for _ in range(5):
            await one.page(one_pass)
        redis_cluster.open_migration(key_slot, target)
        redis_cluster.move_keys(key_slot, source, target)
        before = one.redis.disruptions
        await one.page(one_pass)
        assert one.redis.disruptions == before + 1
        # All of it is found once more, and that the bucket lies elsewhere counts once.
        one.found.clear()
        await one.finish(one_pass)
        assert one.redis.disruptions == before + 1
        wanted = {key for segment in range(1, 1000) for key in segment_keys(segment)}
        assert one.found == {SLOT: wanted}
        redis_cluster.end_migration(key_slot, target)


async def test_a_page_that_fails_is_asked_again_and_nothing_is_missed(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "FIELDS", 20)
    async with bucketed(redis_server.url, prefix, buckets=2) as one:
        for segment in range(1, 500):
            await one.add(SLOT, segment, segment_keys(segment))
        one_pass = Scan(one.names, [SLOT])
        for _ in range(3):
            await one.page(one_pass)
        redis_server.ask("CLIENT", "KILL", "TYPE", "normal")
        while not one_pass.is_over:
            await one.page(one_pass)
        assert one.found == {SLOT: {k for n in range(1, 500) for k in segment_keys(n)}}
