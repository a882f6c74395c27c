"""A pod's writer on real servers: killed, emptied, full, contended for."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from tests.indexer.engine_model import EngineModel
from tests.indexer.shared.asked_server import connected
from tests.indexer.shared.inside import check_writer
from tests.indexer.shared.publisher_model import FollowedPod, new_writer
from tests.indexer.shared.redis_model import found_under, read_bucket
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.names import BUCKETS, KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import Record, read_record
from warmpath.indexer.shared.writer.lease import Cause
from warmpath.indexer.shared.writer.machine import Writer, WriterState
from warmpath.indexer.shared.writer.run import write
from warmpath.process.tasks import cancel, watched
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

LEASE = 2.0
"""Seconds: short, so that what is noticed at an audit or when it is over is noticed soon."""
LONG = 60.0
"""A lease and a time-out that are not over on the busiest machine: where a test counts what went wrong."""
LONGER = 12.0
"""A lease that is hardly over on a busy machine, where a test waits for an audit: there are three in it."""
BLOCKS = 200


class Writing(NamedTuple):
    """A writer that runs."""

    writer: Writer
    task: asyncio.Task[None]


class Pod(FollowedPod):
    """An engine that has served a prompt, what a publisher follows of it, and a server for it."""

    def __init__(self, server: RedisServer, prefix: str, buckets: int = BUCKETS) -> None:
        super().__init__("p", [EngineModel(capacity=BLOCKS)], time.monotonic, max_bytes=1 << 20)
        self.server = server
        self.names = KeyNames(prefix, buckets)
        self.news: list[asyncio.Event] = []
        self.store(range(300))

    def store(self, *prompts: range) -> None:
        for prompt in prompts:
            self.heard(0, self.engines[0].store(tuple(prompt)))
        self.tell()

    def clear(self) -> None:
        self.heard(0, self.engines[0].clear())
        self.tell()

    def tell(self) -> None:
        self.cache.collect()
        for one in self.news:
            one.set()

    @asynccontextmanager
    async def written(
        self, *, owner: str = "one", lease: float = LEASE, timeout: float = 0.5
    ) -> AsyncIterator[Writing]:
        news = asyncio.Event()
        self.news.append(news)
        writer = new_writer(
            self.names, self.cache, time.monotonic,
            owner=owner, watch="127.0.0.1:1", lease=lease, bucket_life=1000.0,
        )  # fmt: skip
        async with connected(self.server.url) as redis:
            task = watched(write(redis, writer, news, timeout=timeout, pause=0.001), "writing")
            try:
                yield Writing(writer, task)
                check_writer(writer)
            finally:
                await cancel([task])
                self.news.remove(news)

    # What is in Redis

    @property
    def record(self) -> Record | None:
        return read_record(self.server.ask("HGETALL", self.names.record("p")))

    def is_told(self) -> bool:
        """Whether Redis says that it has everything, and that it is sound and audited."""
        record = self.record
        return bool(
            record
            and record.sound
            and record.audits
            and not record.building
            and record.applied == self.cache.journal.sequence
        )

    async def told(self) -> Record:
        """Wait until Redis says that it has everything; readers then find it under the living places."""
        await until(self.is_told)
        record = self.record
        assert record is not None
        assert record.claim is not None
        keys = [self.names.bucket(number) for number in range(self.names.buckets)]
        buckets = [read_bucket(self.server.ask("HGETALL", key))[1] for key in keys]
        found: dict[Tier, set[int]] = {}
        for spot, key in found_under(record.claim, buckets):
            found.setdefault(spot.tier, set()).add(key)
        assert found == {tier: keys for (tier, _), keys in self.held(0).items()}
        return record


@pytest.fixture
def pod(redis_server: RedisServer, prefix: str) -> Pod:
    return Pod(redis_server, prefix)


async def test_the_engines_capacity_is_in_redis_as_soon_as_it_is_known(pod: Pod) -> None:
    async with pod.written(lease=LONG, timeout=LONG):
        await pod.told()
        pod.cache.ranks[0].learn_capacity(BLOCKS)
        pod.tell()
        record = await pod.told()
    assert record.states[0].capacity == BLOCKS


@pytest.mark.parametrize("kind", ["redis_server", "valkey_server"])
async def test_what_the_engine_holds_is_in_redis_and_follows_it(
    kind: str, request: pytest.FixtureRequest, prefix: str
) -> None:
    server: RedisServer = request.getfixturevalue(kind)
    pod = Pod(server, prefix)
    pod.store(range(1000, 1050))
    async with pod.written(lease=LONG, timeout=LONG) as one:
        await pod.told()
        pod.store(range(2000, 2100), range(300))
        await pod.told()
        pod.clear()
        pod.store(range(70))
        record = await pod.told()
        assert record.claim is not None
        assert record.claim.watch == "127.0.0.1:1"
        assert record.claim.places[0] is None
        assert record.blocks == {0: {Tier.GPU: 35}}
        assert record.states[0].trust == "exact"
        assert one.writer.counts.rebuilds == {Cause.START: 1}
        entries = server.raw("XRANGE", pod.names.log("p"), "-", "+")
        sequences = [
            delta.sequence
            for _, fields in entries
            for delta in pb.Deltas.FromString(fields[3]).deltas
        ]
        assert sequences == list(range(record.applied - len(sequences) + 1, record.applied + 1))


@pytest.mark.parametrize(
    ("planted", "keys"),
    [
        (("RPUSH", "x"), lambda names: [names.schema, names.pods, names.record("p"), names.fence("p")]),
        (("SET", "x"), lambda names: [names.log("p"), names.bucket(0), names.bucket(1)]),
        (("SET", str(2**53)), lambda names: [names.fence("p")]),
        (("HSET", "token", str(2**53)), lambda names: [names.record("p")]),
        (("DEL HSET", "token", "1"), lambda names: [names.record("p")]),
        (("HSET", checkpoint("p"), f"{10**15 - 1}:{10**15 - 1}"), lambda names: [names.bucket(n) for n in range(names.buckets)]),
    ],
)  # fmt: skip
async def test_a_writer_needs_nobodys_help_where_keys_are_planted(
    pod: Pod, planted: tuple[str, ...], keys: Callable[[KeyNames], list[str]]
) -> None:
    command, *words = planted
    ask = pod.server.ask
    async with pod.written() as one:
        await pod.told()
        for key in keys(pod.names):
            if command != "HSET":
                ask("DEL", key)
            ask(command.removeprefix("DEL "), key, *words)
        pod.store(range(1000, 1050))
        # A claim meets what a writer leaves alone while all is well: its fence, the schema.
        ask("HDEL", pod.names.bucket(2), checkpoint("p"))
        await until(lambda: one.writer.counts.rebuilds.total() > 1)
        await until(lambda: one.writer.state is WriterState.CURRENT)
        await pod.told()
        assert one.writer.token < 10**12


@pytest.mark.parametrize("appendonly", ["yes", "no"])
async def test_a_server_that_is_killed_and_comes_back_has_everything_again(
    appendonly: str, prefix: str
) -> None:
    with RedisServer("redis", appendonly=appendonly, appendfsync="always") as server:
        pod = Pod(server, prefix)
        async with pod.written() as one:
            await pod.told()
            server.kill()
            pod.store(range(1000, 1100))
            await until(lambda: one.writer.trouble)
            server.restart()
            await pod.told()
            pod.store(range(2000, 2050))
            await pod.told()


async def test_it_starts_without_redis_and_writes_when_it_is_there(prefix: str) -> None:
    with RedisServer("redis") as server:
        server.stop()
        pod = Pod(server, prefix)
        async with pod.written() as one:
            await until(lambda: one.writer.trouble)
            assert one.writer.state is WriterState.CLAIMING
            server.restart()
            await pod.told()


@pytest.mark.parametrize("value", [b"", b"x:1", b"1:", b"1:-1", b"\xff" * 20, b"9" * 5000 + b":1"])
async def test_a_checkpoint_that_no_writer_wrote_counts_as_lost_and_is_replaced(
    redis_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    pod = Pod(redis_server, prefix, buckets=2)
    async with pod.written() as one:
        await pod.told()
        redis_server.ask("HSET", pod.names.bucket(1), checkpoint("p"), value)
        await until(lambda: one.writer.counts.rebuilds[Cause.LOST])
        await pod.told()
    assert "a bug of ours" not in caplog.text


@pytest.mark.deep
async def test_of_two_writers_the_last_has_the_pod_and_the_first_takes_it_back_when_it_ends(
    pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with pod.written(owner="one", lease=LONGER, timeout=LONG) as one:
            await pod.told()
            async with pod.written(owner="two", lease=LONGER, timeout=LONG) as two:
                await until(lambda: one.writer.state is WriterState.WAITING)
                await until(lambda: two.writer.state is WriterState.CURRENT)
                await until(lambda: "writer two" in caplog.text)
                pod.store(range(1000, 1100))
                assert (await pod.told()).owner == "two"
            left = pod.record
            assert left is not None
            assert not left.sound
            assert left.reason == "its publisher has ended"
            await until(lambda: one.writer.state is WriterState.CURRENT)
            await pod.told()
    waiting = [line for line in caplog.messages if "another writer has the pod" in line]
    assert len(waiting) == 1
    [told_of] = [record for record in caplog.records if "writer two has the pod" in record.message]
    assert told_of.levelno == logging.WARNING
    assert "watched at 127.0.0.1:1; two publishers have --pod" in told_of.message


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_at_the_memory_limit_the_pod_is_said_to_be_unsound_and_heals_when_it_is_lifted(
    kind: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with RedisServer("redis" if kind == "redis" else "valkey") as server:
        pod = Pod(server, prefix)
        async with pod.written(lease=LONG, timeout=LONG) as one:
            await pod.told()
            server.ask("CONFIG", "SET", "maxmemory", "1")
            pod.store(range(1000, 1100))

            def unsound() -> bool:
                record = pod.record
                return record is not None and not record.sound

            await until(unsound)
            await until(lambda: one.writer.trouble.startswith("OOM"))
            # The lease goes on: nothing has to be written anew when there is room.
            assert one.writer.state is WriterState.CURRENT
            server.ask("CONFIG", "SET", "maxmemory", "0")
            await pod.told()
            assert one.writer.counts.rebuilds == {Cause.START: 1}
            said = [one.message for one in caplog.records if "shared index: " in one.message]
            assert any("OOM" in line for line in said)
            assert said[-1] == "pod p: shared index: it can be written again", (
                "Redis answered throughout"
            )


async def test_another_version_under_the_prefix_is_not_touched(pod: Pod) -> None:
    pod.server.ask("HSET", pod.names.schema, "schema", "99")
    async with pod.written() as one:
        await until(lambda: "schema 99" in one.writer.trouble)
        assert pod.server.ask("DBSIZE") == 1
        pod.server.ask("DEL", pod.names.schema)
        await pod.told()


async def test_more_than_the_journal_holds_is_written_anew(pod: Pod) -> None:
    async with pod.written() as one:
        await pod.told()
        pod.server.pause()
        try:
            await until(lambda: one.writer.trouble)
            pod.cache.journal._max_bytes = 1
            pod.store(range(1000, 1300))
        finally:
            pod.server.resume()
        # On a busy machine the lease may end first; then the record is what is missed.
        rebuilds = one.writer.counts.rebuilds
        await until(lambda: rebuilds[Cause.BEHIND] or rebuilds[Cause.RECORD])
        await pod.told()
