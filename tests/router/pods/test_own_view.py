"""Which view answers for a pod that this router writes: its own, or the shared index; on a real server."""

from collections.abc import Iterator

import pytest

from tests.indexer.engine_model import EngineModel
from tests.indexer.shared.asked_server import AskedServer
from tests.indexer.shared.inside import check_replica
from tests.indexer.shared.publisher_model import PublisherModel
from tests.servers.redis_server import RedisServer
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.replica.run import SCAN_PAUSE, Replica
from warmpath.indexer.trust import Level
from warmpath.router.pods.own_view import BY_INDEX, PATIENCE_SECONDS, OwnView

PROMPT = (0, 1, 2, 3, 4, 5, 6, 7)
OTHER = (9, 9, 9, 9)


class Stand:
    """A pod of two ranks, another router that writes it, and this one, which could."""

    def __init__(self, server: AskedServer, prefix: str) -> None:
        self.server = server
        self.now = 0.0
        server.clock = lambda: self.now
        names = KeyNames(prefix, buckets=3)
        self.engines = [EngineModel(), EngineModel()]
        self.other, self.own = (
            PublisherModel(
                names, "p", self.engines, life=life, do=server.do, clock=lambda: self.now
            )
            for life in (1, 2)
        )
        self.ingest = Ingest(
            ArrayIndex(1 << 20),
            hash_seed="",
            pending_bytes=1,
            stale_after=30.0,
            clock=lambda: self.now,
        )
        self.replica = Replica(server, names, poll_seconds=0.05, clock=lambda: self.now)
        self.ranks = [self.ingest.watch("p", number) for number in range(2)]
        self.replica.add("p", self.ranks, "keyspace")
        self.view = OwnView(
            self.own.cache, self.own.writer, self.ranks, self.replica, lambda: self.now
        )

    def store(self, tokens: tuple[int, ...] = PROMPT, *, rank: int = 0, own: bool = True) -> None:
        """Store a prompt; with `own` this router gets the event as well as the other one."""
        message = self.engines[rank].store(tokens)
        self.take(rank, message, own=own)

    def clear(self, rank: int = 0) -> None:
        self.take(rank, self.engines[rank].clear())

    def take(self, rank: int, message: tuple[int, bytes], *, own: bool = True) -> None:
        self.other.heard(rank, message)
        self.other.note()
        if own:
            self.own.heard(rank, message)

    async def go_on(self, seconds: float = 3.0) -> None:
        """Let the other router write and audit, and this one read and choose."""
        for _ in range(500):
            self.other.write(1)
            if self.other.is_current:
                break
        for _ in range(round(seconds / SCAN_PAUSE)):
            self.other.audit()
            await self.pass_time(SCAN_PAUSE)

    async def pass_time(self, seconds: float = 1.0) -> None:
        for _ in range(3):
            self.now += seconds / 3
            await self.replica.step()
            self.ingest.tick(1000)
            self.view.choose()
            check_replica(self.replica)
            self.ingest.check()

    def is_true(self, rank: int = 0) -> None:
        """Assert that a rank is exact, and holds what its engine does."""
        assert self.ranks[rank].trust.level is Level.EXACT, self.ranks[rank].trust
        held = self.other.truths[self.other.cache.journal.sequence][rank]
        self.ranks[rank]._slots.check(held)


@pytest.fixture
def stand(redis_server: RedisServer, prefix: str) -> Iterator[Stand]:
    server = AskedServer(redis_server)
    yield Stand(server, prefix)
    server.client.close()


async def test_what_the_own_events_show_is_exact_whatever_becomes_of_redis(stand: Stand) -> None:
    stand.server.is_away = True
    stand.store()
    await stand.pass_time()
    stand.is_true()
    stand.server.is_away = False
    await stand.go_on()
    # The other router dies: its record stays, and says less and less of the engine.
    for number in range(10):
        stand.store((number, number, 1, 1))
        stand.view.choose()
        stand.is_true()
        await stand.pass_time(100.0)
        stand.is_true()
    assert not stand.ranks[0].trust.reason.startswith(BY_INDEX)
    assert stand.view.answers()[0]


async def test_the_shared_index_answers_for_the_ranks_whose_own_events_are_not_enough(
    stand: Stand,
) -> None:
    stand.store(own=False)
    stand.store(OTHER)
    stand.store(rank=1)
    await stand.go_on()
    await stand.go_on()
    assert stand.view.answers() == {0: False, 1: True}
    for rank in (0, 1):
        stand.is_true(rank)
    assert stand.ranks[0].trust.reason.startswith(BY_INDEX)
    # Changes come from either side, each to its own ranks.
    stand.store((5, 5, 5, 5))
    stand.store((6, 6, 6, 6), rank=1)
    await stand.go_on()
    for rank in (0, 1):
        stand.is_true(rank)


async def test_a_rank_keeps_its_life_and_its_blocks_when_the_own_view_takes_over(
    stand: Stand,
) -> None:
    stand.store(own=False)
    stand.store(OTHER)
    await stand.go_on()
    await stand.go_on()
    stand.is_true()
    assert not stand.view.answers()[0]
    life = stand.ingest.life("p", 0)
    # A clear shows that nothing is missing any more.
    stand.clear()
    stand.store()
    stand.view.choose()
    stand.is_true()
    assert stand.view.answers()[0]
    assert stand.ingest.life("p", 0) == life
    # What the other router writes later changes nothing here.
    stand.store(OTHER, own=False)
    held = stand.ranks[0].blocks()
    await stand.go_on()
    assert stand.ranks[0].blocks() == held


async def test_a_view_in_doubt_answers_until_its_doubt_has_lasted(stand: Stand) -> None:
    stand.store()
    await stand.go_on()
    await stand.go_on()
    stand.own.cache.ranks[0].missed("a test says so")
    since = stand.own.cache.ranks[0].inexact_since
    stand.now = since + PATIENCE_SECONDS - 1
    stand.view.choose()
    assert stand.view.answers()[0]
    assert stand.ranks[0].trust.reason == "a test says so"
    stand.now = since + PATIENCE_SECONDS
    stand.view.choose()
    assert not stand.view.answers()[0]
    assert stand.ranks[0].trust.level is Level.DEGRADED
    await stand.go_on()
    await stand.go_on()
    stand.is_true()


async def test_the_own_view_answers_even_in_doubt_where_nobody_knows_better(stand: Stand) -> None:
    stand.store(own=False)
    stand.store(OTHER)
    await stand.go_on()
    await stand.go_on()
    stand.is_true()
    # Redis goes, for longer than its copy may be believed.
    stand.server.is_away = True
    await stand.pass_time(20.0)
    assert not stand.view.answers()[0]
    assert stand.ranks[0].trust.level is Level.DEGRADED
    await stand.pass_time(40.0)
    assert stand.view.answers()[0]
    assert stand.ranks[0].trust.level is Level.DEGRADED
    assert stand.ranks[0].trust.reason == stand.own.cache.ranks[0].trust.reason
    stand.server.is_away = False
    # The record is confirmed first, then the copy that is made.
    for _ in range(3):
        await stand.go_on(PATIENCE_SECONDS)
    stand.is_true()
    # This router claims the pod: what the shared index has is now its own word.
    while not stand.own.writer.token:
        stand.own.write(1)
    stand.view.choose()
    assert stand.view.answers()[0]
    assert stand.ranks[0].trust.level is Level.DEGRADED


async def test_a_fault_of_ours_leaves_nothing_out_for_good(stand: Stand) -> None:
    stand.store()
    await stand.pass_time()
    stand.is_true()
    stand.view.failed("a bug of ours")
    assert stand.ranks[0].trust.level is not Level.EXACT
    stand.store(OTHER)
    stand.own.cache.collect()
    stand.view.choose()
    stand.is_true()


async def test_a_rank_is_connected_while_its_own_events_arrive(stand: Stand) -> None:
    stand.store()
    await stand.pass_time()
    assert stand.ranks[0].is_connected
    stand.own.cache.ranks[0].disconnected()
    stand.view.choose()
    assert not stand.ranks[0].is_connected
    stand.own.cache.ranks[0].connected()
    stand.view.choose()
    assert stand.ranks[0].is_connected
