"""Who sweeps, when, and how fast."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from tests.indexer.segment_values import encode, pack
from tests.indexer.shared.asked_server import AskedServer, ensure
from tests.indexer.shared.model_writer import ModelWriter, content
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.schema import SchemaError
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandRefusedError,
    Redis,
    Reply,
    UnreachableError,
)
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.indexer.shared.sweep.sweeper import AT_REST, LeaseLostError, Sweeper

BUCKETS = 4


class Watched:
    """Passes on, counts, and does what a test wants before a command."""

    def __init__(self, redis: Redis, server: RedisServer, prefix: str) -> None:
        self._redis = redis
        self.server = server
        self.asked_server = AskedServer(server)
        self.names = KeyNames(prefix, buckets=BUCKETS)
        self.before: dict[str, object] = {}
        self.asked: list[str] = []

    @property
    def disruptions(self) -> int:
        return self._redis.disruptions

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        for one in asked:
            name = one.script.name if isinstance(one, Call) else str(one.words[0])
            self.asked.append(name)
            act = self.before.pop(name, None)
            if callable(act):
                act()
            elif isinstance(act, Exception):
                return [act] * len(asked)
        return await self._redis.run(asked, timeout=timeout)

    async def close(self) -> None:
        await self._redis.close()
        self.asked_server.client.close()


@pytest.fixture
async def redis(redis_server: RedisServer, prefix: str) -> AsyncIterator[Watched]:
    one = Watched(await connect(RedisSettings(redis_server.url)), redis_server, prefix)
    await ensure(one, one.names)
    yield one
    await one.close()


def sweeper(redis: Watched, owner: str = "a", **options: float) -> Sweeper:
    given: dict[str, Any] = {"fields_per_second": 1e9, "sleep": _briefly, **options}
    return Sweeper(redis, redis.names, owner=owner, clock=time.monotonic, **given)


def dead_claim(redis: Watched) -> None:
    writer = ModelWriter(redis.asked_server, redis.names, "gone", 1)
    begin(writer)
    writer.record_ends()


def begin(writer: ModelWriter) -> None:
    """Claim the pod and write a little."""
    writer.begin()
    for segment in range(8):
        writer.write(0, segment, {segment + 100})


def left(redis: Watched) -> int:
    return len(content(redis.asked_server, redis.names))


async def test_one_of_many_sweeps(redis: Watched) -> None:
    dead_claim(redis)
    sweepers = [sweeper(redis, f"s{number}") for number in range(8)]
    holders = await asyncio.gather(*(one.sweep() for one in sweepers))
    assert sum(one.counts.passes for one in sweepers) == 1
    assert holders.count("") == 1
    assert left(redis) == 0


async def test_the_next_pass_waits_for_the_pause_whoever_makes_it(redis: Watched) -> None:
    first, second = sweeper(redis, "a"), sweeper(redis, "b")
    assert await first.sweep() == ""
    assert await second.sweep() == AT_REST + "a"
    assert await first.sweep() == AT_REST + "a"
    assert 50_000 < redis.server.ask("PTTL", redis.names.sweeper) <= 60_000
    assert await second.sweep(insist=True) == ""
    assert await first.sweep() == AT_REST + "b"


async def test_a_sweeper_at_work_is_not_pushed_aside(redis: Watched) -> None:
    redis.server.ask("SET", redis.names.sweeper, "other", "PX", 60_000)
    assert await sweeper(redis).sweep(insist=True) == "other"


async def test_a_dead_sweepers_lease_runs_out(redis: Watched) -> None:
    dead_claim(redis)
    redis.before["HSCAN"] = UnreachableError("the process dies here")
    with pytest.raises(UnreachableError):
        await sweeper(redis, "dying", lease=0.2).sweep()
    other = sweeper(redis, "other")
    while holder := await other.sweep():
        assert holder == "dying"
        await asyncio.sleep(0.01)
    assert left(redis) == 0


async def test_the_lease_is_renewed_for_as_long_as_a_pass_takes(redis: Watched) -> None:
    dead_claim(redis)
    one = Sweeper(redis, redis.names, owner="a", clock=_ticking(10.0), lease=60.0, sleep=_at_once)
    await one.sweep()
    # Once more than renewals: the pause.
    assert redis.asked.count("hold") > 4
    assert left(redis) == 0


async def test_a_sweeper_that_lost_its_lease_stops(redis: Watched) -> None:
    redis.before["HSCAN"] = lambda: redis.server.ask("SET", redis.names.sweeper, "other")
    one = Sweeper(redis, redis.names, owner="a", clock=_ticking(15.0), lease=60.0, sleep=_at_once)
    with pytest.raises(LeaseLostError):
        await one.sweep()
    assert one.counts.failed == 1
    assert redis.server.ask("GET", redis.names.sweeper) == b"other"


async def test_a_purge_that_comes_after_the_lease_has_run_out_harms_nothing(redis: Watched) -> None:
    """It stands still before its first purge; meanwhile another sweeps and the pod is claimed anew."""
    dead_claim(redis)
    writer = ModelWriter(redis.asked_server, redis.names, "gone", 2)

    def meanwhile() -> None:
        redis.server.ask("DEL", redis.names.sweeper)
        begin(writer)
        writer.tell()

    redis.before["purge"] = meanwhile
    await sweeper(redis).sweep()
    assert writer.missing(content(redis.asked_server, redis.names)) == []
    assert writer.audit()
    await sweeper(redis, "b").sweep(insist=True)
    assert writer.audit()
    assert left(redis) == 1


async def test_a_bucket_is_begun_anew_where_another_server_may_answer(redis: Watched) -> None:
    dead_claim(redis)
    redis.before["retire"] = lambda: redis.server.ask("CLIENT", "KILL", "TYPE", "normal")
    one = sweeper(redis, "a")
    assert await one.sweep() == ""
    assert (one.counts.failed, one.counts.passes) == (1, 1)
    assert left(redis) == 0


async def test_another_versions_index_is_left_alone(redis: Watched) -> None:
    dead_claim(redis)
    redis.server.ask("HSET", redis.names.schema, "schema", "999")
    with pytest.raises(SchemaError, match="schema 999"):
        await sweeper(redis).sweep()
    assert left(redis) == 1


async def test_where_nothing_lies_nothing_is_swept_or_written(redis: Watched) -> None:
    redis.names = KeyNames(f"{redis.names.prefix}-empty", buckets=BUCKETS)
    one = sweeper(redis)
    assert await one.sweep() == ""
    assert one.counts.fields == 0
    assert redis.server.ask("EXISTS", redis.names.schema, redis.names.pods) == 0


async def test_no_more_fields_a_second_are_read_than_may_be(redis: Watched) -> None:
    """By a clock that only sleeping moves: a pass takes as long as its work is worth."""
    with_server = await redis.run(
        [
            Command(("HSET", redis.names.bucket(bucket), *_fields(bucket, 500)))
            for bucket in range(BUCKETS)
        ],
        timeout=60,
    )
    assert with_server == [500] * BUCKETS
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    one = Sweeper(
        redis, redis.names, owner="a", clock=lambda: now, fields_per_second=100, sleep=sleep
    )
    await one.sweep()
    assert one.counts.fields == 2000
    assert 20 < now < 24


@pytest.mark.parametrize("server", ["redis_server", "valkey_server"])
async def test_at_the_memory_limit_the_sweep_makes_room(
    server: str, request: pytest.FixtureRequest, prefix: str
) -> None:
    full: RedisServer = request.getfixturevalue(server)
    redis = Watched(await connect(RedisSettings(full.url)), full, prefix)
    await ensure(redis, redis.names)
    dead_claim(redis)
    full.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        assert await sweeper(redis, "a").sweep() == ""
        assert left(redis) == 0
        assert await sweeper(redis, "b").sweep(insist=True) == ""
    finally:
        full.ask("CONFIG", "SET", "maxmemory", "0")
        await redis.close()


async def test_troubles_are_told_once_and_then_it_goes_on(
    redis: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    naps = 0

    async def sleep(seconds: float) -> None:
        nonlocal naps
        if seconds > 1:
            naps += 1
            if naps < 3:
                redis.before["hold"] = CommandRefusedError("LOADING")
            elif naps == 4:
                raise asyncio.CancelledError

    redis.before["hold"] = CommandRefusedError("LOADING")
    one = Sweeper(redis, redis.names, owner="a", clock=time.monotonic, sleep=sleep)
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await one.run()
    told = [record.message for record in caplog.records if "swept" in record.message]
    assert told == ["the shared index was not swept to the end: LOADING"]
    assert one.counts.passes == 1


async def test_it_sweeps_from_the_start_on(redis: Watched) -> None:
    dead_claim(redis)
    task = asyncio.create_task(sweeper(redis, "a").run())
    while left(redis):
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _ticking(seconds: float) -> Callable[[], float]:
    """Return a clock that goes so far whenever it is looked at."""
    times = itertools.count(0.0, seconds)
    return lambda: next(times)


async def _at_once(seconds: float) -> None:
    del seconds


async def _briefly(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.01))


def _fields(bucket: int, count: int) -> tuple[bytes, ...]:
    named = [(n * BUCKETS + bucket).to_bytes(8, "little") for n in range(count)]
    return tuple(part for name in named for part in (name, encode(pack({1: [2]}))))
