"""Publisher and watcher as machines: whatever the connection does, the router holds what it should.

A true engine (`tests/indexer/engine_model.py`) is followed by a publisher; a router follows the
publisher through cuts, restarts of either, and a journal that is far too short.
"""

from collections import deque

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import Engine, RankSource
from warmpath.indexer.trust import BEHIND, Level
from warmpath.indexer.watch.pod_cache import Journal, PodCache
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb
from warmpath.publisher.metrics import PublisherCollector
from warmpath.publisher.watch_server import WatchServer
from warmpath.router.diagnosis.attribution import Row
from warmpath.router.diagnosis.findings import findings
from warmpath.router.diagnosis.mispredictions import PodFacts, RankFacts

TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple)


class Follow(RuleBasedStateMachine):
    """One engine, its publisher, and a router."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0
        self.engine = EngineModel()
        self.reported = False
        """Whether hits were announced as stores in the engine's life."""
        self.ingest = new_ingest(MemoryIndex)
        self.rank: WatchedRank = self.ingest.watch("p", 0)
        self.wire: deque[pb.WatchResponse] = deque()
        self.connected = False
        self.loading = False
        self.position = ("", 0)
        self.sent = 0
        self.start_publisher()

    def start_publisher(self) -> None:
        self.epochs += 1
        source = RankSource(
            "p", 0, "m", vllm.decode, has_replay=False, capacity=self.engine.capacity
        )
        self.cache = PodCache("p", Journal(f"epoch-{self.epochs}", max_bytes=400))
        self.followed = self.cache.add(source, stale_after=1.0, segmented=True, clock=lambda: 0.0)
        self.followed.connected()

    def heard(self, message: tuple[int, bytes] | None) -> None:
        if message is not None:
            self.followed.live("", *message)

    @rule(tokens=TOKENS)
    def store(self, tokens: tuple[int, ...]) -> None:
        self.heard(self.engine.store(tokens))

    @rule(tokens=TOKENS)
    def report(self, tokens: tuple[int, ...]) -> None:
        self.reported = True
        self.heard(self.engine.report(tokens))

    @rule(which=st.integers(0, 30))
    def evict(self, which: int) -> None:
        self.heard(self.engine.evict(which))

    @rule(which=st.integers(0, 30))
    def offload(self, which: int) -> None:
        self.heard(self.engine.offload(which))

    @rule()
    def clear(self) -> None:
        self.heard(self.engine.clear())

    @rule()
    def restart_engine(self) -> None:
        self.engine.restart()
        self.reported = False
        self.followed.disconnected()
        self.followed.connected()

    @rule()
    def restart_publisher(self) -> None:
        self.cut()
        self.start_publisher()

    @rule()
    def collect(self) -> None:
        self.cache.collect()

    @rule()
    def connect(self) -> None:
        """Connect as the server's handler answers."""
        if self.connected:
            return
        self.connected = True
        journal = self.cache.journal
        self.cache.collect()
        epoch, sequence = ("", 0) if self.loading else self.position
        resumes = journal.reaches(epoch, sequence)
        self.wire.append(
            pb.WatchResponse(hello=pb.Hello(epoch=journal.epoch, snapshot=not resumes, ranks=1))
        )
        if not resumes:
            self.wire.extend(self.cache.snapshot())
        self.sent = sequence if resumes else journal.sequence

    @rule(most=st.integers(1, 5))
    def send(self, most: int) -> None:
        if not self.connected:
            return
        deltas = self.cache.journal.after(self.sent, most)
        if deltas is None:
            self.cut()
            return
        for delta in deltas:
            self.wire.append(pb.WatchResponse(delta=delta))
            self.sent = delta.sequence

    @rule()
    def cut(self) -> None:
        if self.connected:
            self.connected = False
            self.wire.clear()
            self.rank.disconnected("cut")

    @rule(times=st.integers(1, 10))
    def receive(self, times: int) -> None:
        for _ in range(min(times, len(self.wire))):
            # What crosses the wire is bytes.
            self.take(pb.WatchResponse.FromString(self.wire.popleft().SerializeToString()))

    def take(self, response: pb.WatchResponse) -> None:
        kind = response.WhichOneof("kind")
        if kind == "hello":
            self.rank.connected()
            self.loading = response.hello.snapshot
            self.position = (response.hello.epoch, self.position[1])
            if self.loading:
                self.rank.begin_snapshot()
        elif kind == "part":
            self.rank.take_part(response.part)
        elif kind == "end":
            self.rank.take_state(response.end.ranks[0])
            self.position = (self.position[0], response.end.sequence)
            self.loading = False
        else:
            assert response.delta.sequence == self.position[1] + 1
            self.rank.take_delta(response.delta, is_next=True)
            self.position = (self.position[0], response.delta.sequence)

    @rule()
    def settle(self) -> None:
        """Let everything arrive: then the router holds exactly what the publisher does."""
        for _ in range(50):
            self.connect()
            self.cache.collect()
            self.send(1000)
            self.receive(10_000)
            if self.connected and self.position == (
                self.cache.journal.epoch,
                self.cache.journal.sequence,
            ):
                break
        else:
            raise AssertionError("the watcher never catches up")
        held = {spot: keys for spot, keys in self.followed.state.held().items() if keys}
        for spot, keys in held.items():
            assert self.holds(spot[0], keys)
        counts = {tier: count for tier, count in self.rank.blocks().items() if count}
        assert counts == {tier: count for tier, count in self.followed.blocks().items() if count}
        assert self.rank.trust.level is self.followed.trust.level
        assert self.rank.capacity == self.followed.capacity
        if self.rank.trust.level is Level.EXACT and not self.reported:
            truth = self.engine.truth()
            assert counts == {tier: len(keys) for tier, keys in truth.items() if keys}

    def holds(self, tier: Tier, keys: set[int]) -> bool:
        stretches = self.ingest.index.stretches(sorted(keys))
        places = {slot: self.ingest.slots.place(slot) for slot, _, _ in stretches}
        here = [one for one in stretches if (place := places[one.slot]) and place.tier is tier]
        return sum(stop - start for _, start, stop in here) == len(keys)

    @invariant()
    def parts_agree(self) -> None:
        check(self.ingest)
        check(self.cache)
        assert self.cache.journal.bytes <= 400


Follow.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=40, deadline=None
)
TestFollow = Follow.TestCase


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
