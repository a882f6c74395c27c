"""After a bug what is copied or asked for is believed no longer, and all goes on."""

import asyncio

import pytest

from tests.indexer.followed import new_ingest
from tests.indexer.memory_index import MemoryIndex
from tests.indexer.shared.asked_server import AskedServer, ensure
from tests.indexer.shared.written_pod import KEYSPACE, WrittenPod
from tests.waiting import until
from warmpath.indexer.rank import Rank
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import BadRecordError, read_record
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.records.registry import Registry
from warmpath.indexer.shared.replica.pod_copy import Resync
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.trust import Level
from warmpath.process.tasks import Work, kept
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

PATIENCE = 30.0


async def until_exact(rank: Rank, pod: WrittenPod) -> None:
    """Wait until a rank is exact, while its publisher audits and confirms."""
    async with asyncio.timeout(PATIENCE):
        while rank.trust.level is not Level.EXACT:
            await pod.tell()
            await asyncio.sleep(0.05)


async def test_after_a_bug_a_copy_is_read_anew_before_it_is_believed(
    asked_server: AskedServer, prefix: str
) -> None:
    clock = asyncio.get_running_loop().time
    names = KeyNames(prefix, buckets=3)
    pod = WrittenPod(asked_server, names, "p", 4711)
    ingest = new_ingest(lambda: MemoryIndex(1 << 20), stale_after=30.0, clock=clock)
    replica = Replica(asked_server, names, poll_seconds=0.01, clock=clock)
    rank = ingest.watch("p", 0)
    replica.add("p", [rank], KEYSPACE)
    levels: list[Level] = []

    def failed(reason: str) -> None:
        replica.failed(reason)
        levels.append(rank.trust.level)

    await ensure(asked_server, names)
    await pod.fence()
    await pod.hold([1, 2, 3])
    await pod.tell()
    running = kept(Work("copying", replica.run, failed), pause=0.0)
    try:
        await until(lambda: rank.trust.level is Level.DEGRADED)
        await until_exact(rank, pod)
        asked_server.bugs = 3
        await until(lambda: len(levels) == 3)
        assert set(levels) == {Level.DEGRADED}
        await until_exact(rank, pod)
        assert replica.counts.resyncs == {Resync.START: 1, Resync.FAILED: 1}
        assert sum(rank.blocks().values()) == 3
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_after_a_bug_records_are_read_again_and_what_they_said_is_doubted(
    asked_server: AskedServer, prefix: str
) -> None:
    clock = asyncio.get_running_loop().time
    names = KeyNames(prefix, buckets=3)
    pod = WrittenPod(asked_server, names, "p", 4711)
    registry = Registry(asked_server, names, clock)
    remote = RemoteIndex(asked_server, names, registry, deadline=1.0, stale_after=30.0, clock=clock)
    rank = remote.add("p", 0, keyspace=KEYSPACE, ranks=1)
    await pod.tell()
    running = kept(Work("asking", remote.run, remote.failed), pause=0.05)
    try:
        await until(lambda: rank.trust.level is Level.DEGRADED)
        await until_exact(rank, pod)
        asked_server.bugs = 1
        await until(lambda: rank.trust.level is Level.DEGRADED)
        assert "bug" in rank.trust.reason
        await until_exact(rank, pod)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await remote.close()


def test_a_record_with_a_trust_of_another_version_is_bad() -> None:
    state = pb.RankState(trust="divine").SerializeToString()
    with pytest.raises(BadRecordError, match="divine"):
        read_record({b"token": b"1", b"state:0": state})


@pytest.mark.parametrize(
    ("field", "most"), [("engine_sequence", 1 << 63), ("copies", 1 << 60), ("capacity", 1 << 60)]
)
def test_a_record_with_a_figure_that_no_engine_leads_to_is_bad(field: str, most: int) -> None:
    state = pb.RankState(trust="exact")
    setattr(state, field, most)
    with pytest.raises(BadRecordError, match=field):
        read_record({b"token": b"1", b"state:0": state.SerializeToString()})
