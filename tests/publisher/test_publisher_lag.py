"""A publisher that follows its engine late says so to the routers and in its metrics."""

import msgspec

from tests.indexer.followed import new_ingest
from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.trust import BEHIND, Level
from warmpath.indexer.watch.pod_cache import Journal, PodCache
from warmpath.publisher.metrics import PublisherCollector
from warmpath.publisher.watch_server import WatchServer
from warmpath.router.diagnosis.attribution import Row
from warmpath.router.diagnosis.findings import findings
from warmpath.router.diagnosis.mispredictions import PodFacts, RankFacts


def test_a_rank_that_a_publisher_follows_late_is_degraded_at_the_routers_and_doctor_names_it() -> (
    None
):
    now = 100.0
    told = [0]
    cache = PodCache("p", Journal("epoch", 1 << 20))
    for source in Engine("p", "m", "vllm", events="tcp://nowhere:1", ranks=2).sources():
        cache.add(source, stale_after=1.0, clock=lambda: now).connected()
    engine = cache.ranks[1]
    ingest = new_ingest(MemoryIndex, clock=lambda: now)
    watched = ingest.watch("p", 1)
    watched.connected()
    server = WatchServer(cache, keyspace="", most=1, heartbeat=1.0, slow_seconds=1.0)
    collector = PublisherCollector(cache, server, None, lambda: now)

    def follow(sequence: int, late: float) -> None:
        nonlocal now
        now += 1.0
        payload = msgspec.msgpack.encode([1.7e9 + now, [], 1])
        now += late
        engine.received("", sequence + 3, is_all=False)
        engine.live_many([("", sequence, payload)])
        cache.collect()
        for delta in cache.journal.after(told[0], 100) or []:
            if delta.state.rank == 1:
                watched.take_delta(delta)
        told[0] = cache.journal.sequence

    def said() -> dict[str, float]:
        return {
            sample.name: sample.value
            for family in collector.collect()
            for sample in family.samples
            if "_lag_" in sample.name and sample.labels["rank"] == "1"
        }

    watched.begin_snapshot()
    watched.end_snapshot()
    follow(0, late=0.0)
    assert watched.trust.level is Level.EXACT
    follow(1, late=30.0)
    assert watched.trust.level is Level.DEGRADED
    assert BEHIND in watched.trust.reason
    assert said() == {
        "warmpath_publisher_rank_lag_seconds": 30.0,
        "warmpath_publisher_rank_lag_batches": 3.0,
    }
    facts = RankFacts(1, watched.trust, 11.0, 11.0, 16, 1000, 1010, 10, has_load=True)
    [found] = findings(PodFacts(True, True, [facts], Row("p", "m")))
    assert found.kind == "lag"
    follow(2, late=0.0)
    assert watched.trust.level is Level.EXACT
