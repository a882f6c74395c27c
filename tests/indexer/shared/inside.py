"""Looks inside the stateful parts of the shared index: each function fails where one contradicts itself."""

from warmpath.indexer.shared.layout.record import SpotOf
from warmpath.indexer.shared.query.buckets import FAILURES, LONGEST_PAUSE, PAUSE, Breaker
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.query.lookup import Places, SegmentCache, _bytes_of
from warmpath.indexer.shared.replica.pod_copy import CopyState
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.writer.machine import Writer, WriterState
from warmpath.indexer.shared.writer.tenure import KeptLog, Tenure


def check_remote(remote: RemoteIndex) -> None:
    check_cache(remote.copy)
    check_places(remote.places)
    for breaker in remote.reach._breakers:
        check_breaker(breaker)


def check_cache(cache: SegmentCache) -> None:
    assert cache._values.keys() == cache._read_at.keys()
    assert cache.bytes == sum(map(_bytes_of, cache._values.values())) <= cache.max_bytes


def check_places(places: Places) -> None:
    slots = [slot for of in places._slots_of.values() for slot in of]
    assert len(slots) == len(places._places)
    assert set(slots) == places._places.keys(), "the places are those of the claims"


def check_breaker(breaker: Breaker) -> None:
    assert 0 <= breaker._failures < FAILURES
    assert breaker.is_closed or not breaker._failures
    assert PAUSE <= breaker._pause <= LONGEST_PAUSE


def check_replica(replica: Replica) -> None:
    for copy in replica._copies.values():
        if copy.state in {CopyState.READING, CopyState.READ, CopyState.FOLLOWING}:
            assert copy._begun is not None
            assert copy._record is not None
            assert copy.position >= copy._begun.applied


def check_writer(writer: Writer) -> None:
    if writer.tenure is not None:
        check_tenure(writer.tenure)
    if writer.state is WriterState.CURRENT:
        assert writer.token
        assert writer.tenure is not None
        assert set(writer.tenure.writes) == set(range(writer.names.buckets))


def check_tenure(tenure: Tenure) -> None:
    check_log(tenure._log)
    claimed = tenure.claimed
    living = {n: spot for n, spot in enumerate(claimed._places) if spot is not None}
    assert {n: SpotOf(rank, *spot) for (rank, spot), n in claimed._numbers.items()} == living
    assert claimed._held.keys() == living.keys()
    assert min(claimed._held.values(), default=0) >= 0


def check_log(log: KeptLog) -> None:
    assert log.bytes == sum(size for _, size in log._entries)
