"""A real `warmpath publish` beside a real worker is killed: its pod is gone with the lease, nobody looking."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.publisher.published_pod import FULL, IDS, Pod
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.indexer.embedded import packed_keys
from warmpath.indexer.keys.key import fingerprint, pack_tokens
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Record, read_record
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.records.registry import Registry, nobody
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.indexer.trust import Level
from warmpath.lab.local.cluster import MODEL
from warmpath.router.prompt.token_prompt import TokenPrompt

pytestmark = pytest.mark.deep

LEASE = 2
PATIENCE = 60.0
PROMPT = TokenPrompt(MODEL, pack_tokens(IDS)).chain(16, "")


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[Pod]:
    async with Pod(tmp_path) as pod:
        yield pod


@asynccontextmanager
async def looking(
    server: RedisServer, names: KeyNames
) -> AsyncIterator[Callable[[], Awaitable[tuple[Level, str, int]]]]:
    """Start what a router has in shared mode; yield what says what the pod holds of the prompt."""
    redis = await connect(RedisSettings(server.url))
    clock = asyncio.get_running_loop().time
    remote = RemoteIndex(
        redis, names, Registry(redis, names, clock), deadline=5.0, stale_after=60.0, clock=clock
    )
    rank = remote.add("p", 0, keyspace=fingerprint(MODEL, ""), ranks=1)

    async def look() -> tuple[Level, str, int]:
        await remote.poll()
        await remote.refresh([packed_keys(PROMPT)], 5.0)
        found, doubt = remote.match(PROMPT)
        trust = rank.in_answer(doubt)
        return trust.level, trust.reason, sum(stop - at for _, at, stop in found)

    yield look
    await remote.close()
    await redis.close()


async def test_a_killed_publishers_pod_is_gone_with_its_lease_though_nobody_looks(
    pod: Pod, redis_server: RedisServer, prefix: str
) -> None:
    names = KeyNames(prefix)
    record_key = names.record("p")
    options = (
        f"--redis={redis_server.url}", f"--redis-prefix={prefix}", f"--redis-lease-seconds={LEASE}",
    )  # fmt: skip

    def record() -> Record | None:
        return read_record(redis_server.ask("HGETALL", record_key))

    def blocks() -> int:
        found = record()
        return sum(found.blocks[0].values()) if found and found.sound and found.blocks else 0

    await pod.publish(*options)
    await pod.generate(IDS)
    await until(lambda: blocks() >= FULL // 16)
    pod.publisher.kill()
    await pod.publisher.stop()
    # The server itself lets it go: that is all that has to happen.
    assert redis_server.ask("PTTL", record_key) <= LEASE * 1000
    await until(lambda: record() is None)
    leftovers = sum(redis_server.ask("EXISTS", names.bucket(n)) for n in range(names.buckets))
    assert leftovers
    async with looking(redis_server, names) as look:
        assert await look() == (Level.COLD, nobody(names.prefix), 0)
    await pod.publish(*options)
    async with looking(redis_server, names) as look:
        async with asyncio.timeout(PATIENCE):
            while (found := await look())[0] is not Level.EXACT or not found[2]:
                await asyncio.sleep(0.01)
        assert found[2] == FULL // 16
