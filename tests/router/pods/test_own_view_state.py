"""Both views of a written pod as a machine against a real server: what answers as exact is the truth.

Another router follows a pod of two ranks and writes it, command by command; this one misses some of the
events, and copies and chooses between any two commands. Redis goes and comes; either may claim the pod.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.examples import examples
from tests.indexer.engine_model import EngineModel
from tests.indexer.shared.asked_server import AskedServer
from tests.indexer.shared.inside import check_replica
from tests.indexer.shared.publisher_model import PublisherModel
from tests.servers.redis_server import RedisServer
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.replica import scan
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.writer.steps import WriterState
from warmpath.indexer.trust import Level
from warmpath.router.pods.own_view import ORDER, PATIENCE_SECONDS, OwnView

NAMES = KeyNames("t", buckets=3)
RANKS = st.integers(0, 1)
TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(hash_max_ziplist_entries=1) as one:
        yield one


class Choosing(RuleBasedStateMachine):
    """A pod that two routers follow."""

    server: AskedServer

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.server.client.flushall()
        self.server.is_away = False
        self.server.clock = lambda: self.now
        self.engines = [EngineModel(), EngineModel()]
        self.other, self.own = (
            PublisherModel(NAMES, "p", self.engines, life=life, do=self.server.do, clock=self.clock)
            for life in (1, 2)
        )
        self.ingest = Ingest(
            ArrayIndex(1 << 20), hash_seed="", pending_bytes=1, stale_after=5.0, clock=self.clock
        )
        self.replica = Replica(self.server, NAMES, poll_seconds=0.05, clock=self.clock)
        self.ranks = [self.ingest.watch("p", number) for number in range(2)]
        self.replica.add("p", self.ranks, "keyspace")
        self.view = OwnView(self.own.cache, self.own.writer, self.ranks, self.replica, self.clock)
        self.runner = asyncio.Runner()

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    @rule(
        rank=RANKS,
        what=st.sampled_from(["store", "store", "evict", "offload", "clear"]),
        tokens=TOKENS,
        which=st.integers(0, 30),
        own=st.sampled_from([True, True, True, False]),
    )
    def change(
        self, rank: int, what: str, tokens: tuple[int, ...], which: int, *, own: bool
    ) -> None:
        arguments = {"store": (tokens,), "clear": ()}.get(what, (which,))
        message = getattr(self.engines[rank], what)(*arguments)
        self.other.heard(rank, message)
        self.other.note()
        if own:
            self.own.heard(rank, message)

    @rule(commands=st.integers(1, 60))
    def write(self, commands: int) -> None:
        self.other.write(commands)

    @rule(commands=st.integers(1, 3))
    def claim(self, commands: int) -> None:
        """Let this router's own writer go on; its claims win."""
        self.own.write(commands)

    @rule()
    def go(self) -> None:
        self.server.is_away = not self.server.is_away

    @rule(seconds=st.sampled_from([0.0, 0.2, PATIENCE_SECONDS, 6.0]))
    def poll(self, seconds: float) -> None:
        self.now += seconds
        self.runner.run(self.replica.step())
        self.ingest.tick(1000)

    @rule()
    def fail(self) -> None:
        self.view.failed("a test says so")

    @rule()
    def choose(self) -> None:
        """Choose: an own view that is exact, or the only one that there is, answers as it is."""
        self.view.choose()
        held = self.own_held()
        for own, rank in zip(self.own.cache.ranks, self.ranks, strict=True):
            if own.trust.level is Level.EXACT or self.own.writer.token:
                assert rank.number not in self.view.by_index
                assert rank.trust.level is own.trust.level
                rank._slots.check(held[rank.number])

    def own_held(self) -> list[Any]:
        resolvers = self.own._resolvers
        return [
            {spot: set(keys) for spot, keys in of.names.held().items() if keys} for of in resolvers
        ]

    @invariant()
    def look(self) -> None:
        """Hold what is exact against what the view that answers was told."""
        self.ingest.check()
        check_replica(self.replica)
        copy = self.replica._copies["p"]
        self.own.cache.collect()
        for rank in self.ranks:
            if rank.trust.level is not Level.EXACT:
                continue
            if rank.number not in self.view.by_index:
                rank._slots.check(self.own_held()[rank.number])
                continue
            assert copy._begun is not None
            assert copy._begun.claim is not None
            [writer] = [of for of in (self.other, self.own) if copy._begun.claim.base in of.bases]
            rank._slots.check(writer.truths[copy.position][rank.number])

    def teardown(self) -> None:
        """Let no fault happen: of two views the better one answers, and is believed."""
        try:
            self.server.is_away = False
            for _ in range(200):
                self.other.write(40)
                if self.own.writer.state is not WriterState.UNCLAIMED:
                    self.own.write(40)
                self.poll(0.5)
                self.choose()
                if self.is_best():
                    return
            raise AssertionError(f"it does not heal: {[rank.trust for rank in self.ranks]}")
        finally:
            self.runner.close()

    def is_best(self) -> bool:
        both = zip(self.other.cache.ranks, self.own.cache.ranks, strict=True)
        best = [
            own.trust.level
            if self.own.writer.token
            else max(told.trust.level, own.trust.level, key=ORDER.index)
            for told, own in both
        ]
        return [rank.trust.level for rank in self.ranks] == best


@pytest.mark.random
def test_the_view_that_answers_is_the_better_one_and_true(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "FIELDS", 1)
    monkeypatch.setattr(scan, "AT_ONCE", 1)
    monkeypatch.setattr("warmpath.indexer.shared.replica.run.SCAN_PAUSE", 0.1)
    Choosing.server = AskedServer(server)
    run: Any = run_state_machine_as_test
    run(Choosing, settings=settings(max_examples=examples(30), stateful_step_count=40))
    Choosing.server.client.close()
