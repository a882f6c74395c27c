"""Replica mode as a machine against a real server: whatever is lost, cut or late, exact is the truth.

Two pods' engines are followed by publishers that write to the server, command by command. A router's
replica polls and scans between any two of these. What is in Redis falls back or goes, with the
connections that tell of it; logs are cut short, leases end, publishers begin anew.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest
from tests.indexer.shared.asked_server import AskedServer
from tests.indexer.shared.inside import check_replica
from tests.indexer.shared.publisher_model import PublisherModel
from tests.servers.redis_server import RedisServer
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.replica import pod_copy
from warmpath.indexer.shared.replica.pod_copy import CopyState
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.writer.machine import WriterState
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.watched_source import WatchedRank

EXAMPLES = examples(30)
NAMES = KeyNames("t", buckets=3)
PODS = ("p/1", "q")
RANKS = 2
TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    # Hashes are real ones, so that a bucket takes several pages.
    with RedisServer(hash_max_ziplist_entries=1) as one:
        yield one


class Copying(RuleBasedStateMachine):
    """Two pods, and a router that copies them."""

    server: AskedServer

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.server.clock = self.clock
        self.lives = 0
        self.server.client.flushall()
        self.server.is_away = False
        self.kept: dict[str, bytes | None] = {}
        self.engines = {pod: [EngineModel() for _ in range(RANKS)] for pod in PODS}
        self.publisher_of: dict[int, PublisherModel] = {}
        """By base of a claim."""
        self.publishers = {pod: self.new_publisher(pod) for pod in PODS}
        self.ingest = new_ingest(lambda: ArrayIndex(1 << 20), stale_after=5.0, clock=self.clock)
        self.replica = Replica(self.server, NAMES, poll_seconds=0.05, clock=self.clock)
        self.ranks: dict[str, list[WatchedRank]] = {}
        for pod in PODS:
            self.ranks[pod] = [self.ingest.watch(pod, number) for number in range(RANKS)]
            self.replica.add(pod, self.ranks[pod], "keyspace")
        self.runner = asyncio.Runner()

    def clock(self) -> float:
        """Return the time, which passes: a pass over the buckets does not end between two polls."""
        self.now += 0.02
        return self.now

    def new_publisher(self, pod: str) -> PublisherModel:
        self.lives += 1
        return PublisherModel(
            NAMES, pod, self.engines[pod], life=self.lives, do=self.server.do, clock=self.clock
        )

    # Engines

    @rule(pod=st.sampled_from(PODS), rank=st.integers(0, RANKS - 1), tokens=TOKENS)
    def store(self, pod: str, rank: int, tokens: tuple[int, ...]) -> None:
        self.publishers[pod].heard(rank, self.engines[pod][rank].store(tokens))
        self.publishers[pod].cache.collect()

    @rule(
        pod=st.sampled_from(PODS),
        rank=st.integers(0, RANKS - 1),
        what=st.sampled_from(["evict", "offload", "clear"]),
        which=st.integers(0, 30),
    )
    def change(self, pod: str, rank: int, what: str, which: int) -> None:
        engine = self.engines[pod][rank]
        arguments = () if what == "clear" else (which,)
        self.publishers[pod].heard(rank, getattr(engine, what)(*arguments))
        self.publishers[pod].cache.collect()

    # Publishers

    @initialize()
    def publish(self) -> None:
        for pod in PODS:
            self.current(pod)
            self.store(pod, 0, (0, 1, 2, 1))
        self.heal()

    @rule(pod=st.sampled_from(PODS), commands=st.integers(1, 40))
    def write(self, pod: str, commands: int) -> None:
        publisher = self.publishers[pod]
        publisher.write(commands)
        self.now += publisher.waits
        publisher.waits = 0.0
        self.publisher_of |= dict.fromkeys(publisher.bases, publisher)

    @rule(pod=st.sampled_from(PODS))
    def current(self, pod: str) -> None:
        """Let the writer write what there is."""
        for _ in range(200):
            self.write(pod, 1)
            if self.publishers[pod].is_current:
                return
        # It waits for the lease of a writer whose record fell back to it.
        assert self.publishers[pod].writer.state is WriterState.WAITING

    @rule(pod=st.sampled_from(PODS))
    def restart_publisher(self, pod: str) -> None:
        self.publishers[pod] = self.new_publisher(pod)

    # What happens in Redis

    @rule(pod=st.sampled_from(PODS))
    def lease_ends(self, pod: str) -> None:
        self.server.client.delete(NAMES.record(pod))

    @rule(pod=st.sampled_from(PODS), left=st.integers(0, 2))
    def cut_log(self, pod: str, left: int) -> None:
        self.server.client.xtrim(NAMES.log(pod), maxlen=left, approximate=False)

    def units(self) -> list[list[str]]:
        """Return the keys, those together that lie on one node and are written by one script."""
        own = [[NAMES.record(pod), NAMES.log(pod), NAMES.fence(pod)] for pod in PODS]
        return own + [[NAMES.bucket(number)] for number in range(NAMES.buckets)]

    @rule()
    def keep(self) -> None:
        """Remember what there is: a replica of the server that is behind from here on."""
        self.kept = {key: self.server.client.dump(key) for unit in self.units() for key in unit}

    @rule(which=st.sets(st.integers(0, 4), min_size=1))
    def fall_back(self, which: set[int]) -> None:
        """Have some of it as it was."""
        for key in [key for number in which for key in self.units()[number]]:
            self.server.client.delete(key)
            if kept := self.kept.get(key):
                self.server.client.restore(key, 3_600_000, kept)
        self.server.disruptions += 1

    @rule(which=st.sets(st.integers(0, 8), min_size=1))
    def let_go(self, which: set[int]) -> None:
        """Have some keys gone, as where memory is short: no connection tells of it."""
        keys = [key for unit in self.units() for key in unit]
        self.server.client.delete(*(keys[number] for number in which))

    @rule()
    def lose_everything(self) -> None:
        self.server.client.flushall()
        self.server.disruptions += 1

    @rule()
    def reconnect(self) -> None:
        self.server.disruptions += 1

    # The router

    @rule()
    def poll_in_vain(self) -> None:
        self.server.is_away = True
        self.poll(1)
        self.server.is_away = False

    @rule(times=st.integers(1, 6))
    def poll(self, times: int) -> None:
        for _ in range(times):
            self.runner.run(self.step())
            self.ingest.tick(1000)
            self.now += 0.2

    async def step(self) -> None:
        await self.replica.step()
        self.look()

    @invariant()
    def look(self) -> None:
        """Hold what is exact against what the publisher held at the copy's position."""
        check(self.ingest)
        check_replica(self.replica)
        for pod in PODS:
            copy = self.replica._copies[pod]
            for rank in self.ranks[pod]:
                assert rank.trust.level is not Level.EXACT or copy.state is CopyState.FOLLOWING
                if copy.state is CopyState.FOLLOWING and not rank._limits:
                    assert copy._begun is not None
                    assert copy._begun.claim is not None
                    publisher = self.publisher_of[copy._begun.claim.base]
                    check(rank._slots, publisher.truths[copy.position][rank.number])
                if copy.state is CopyState.NOTHING:
                    assert not any(rank.blocks().values())

    @rule()
    def heal(self) -> None:
        """Let no fault happen: every copy comes to be what its publisher holds, and is believed."""
        for _ in range(200):
            for pod in PODS:
                self.write(pod, 4)
                # What fell back to a writer that is no more goes with its lease.
                owner = self.server.client.hget(NAMES.record(pod), "owner")
                if owner and owner.decode() != self.publishers[pod].owner:
                    self.lease_ends(pod)
            self.poll(1)
            if all(map(self.is_whole, PODS)):
                return
        raise AssertionError(f"it does not heal: {[r.trust for r in self.ranks['p/1']]}")

    def teardown(self) -> None:
        try:
            self.heal()
        finally:
            self.runner.close()

    def is_whole(self, pod: str) -> bool:
        copy, publisher = self.replica._copies[pod], self.publishers[pod]
        return (
            publisher.is_current
            and copy.state is CopyState.FOLLOWING
            and copy.position == publisher.writer.applied
            and all(
                rank.trust.level is told.trust.level and not rank._limits
                for rank, told in zip(self.ranks[pod], publisher.cache.ranks, strict=True)
            )
        )


@pytest.mark.random
def test_what_is_exact_is_true_whatever_is_lost(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_copy, "PAGE", 2)
    monkeypatch.setattr("warmpath.indexer.shared.replica.run.FIELDS", 1)
    monkeypatch.setattr("warmpath.indexer.shared.replica.run.AT_ONCE", 1)
    monkeypatch.setattr("warmpath.indexer.shared.replica.run.SCAN_PAUSE", 0.1)
    Copying.server = AskedServer(server)
    run: Any = run_state_machine_as_test
    run(Copying, settings=settings(max_examples=EXAMPLES, stateful_step_count=40))
    Copying.server.client.close()
