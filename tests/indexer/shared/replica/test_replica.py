"""What a router's copy does about each thing that can happen to it, on a real server.

One file: all tests copy from one stand.
"""

import logging
from collections.abc import Callable

import msgspec
import pytest

from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest
from tests.indexer.memory_index import MemoryIndex
from tests.indexer.shared.asked_server import AskedServer
from tests.indexer.shared.inside import check_replica
from tests.indexer.shared.publisher_model import PublisherModel
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.contract import Index
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim
from warmpath.indexer.shared.records.registry import LATE
from warmpath.indexer.shared.redis.command import Call, Command, Reply
from warmpath.indexer.shared.replica.pod_copy import CopyState, Resync
from warmpath.indexer.shared.replica.run import SCAN_PAUSE, Replica
from warmpath.indexer.trust import PROMISED_SECONDS, Level
from warmpath.indexer.watch.watched_source import WatchedRank

PROMPT = (0, 1, 2, 3, 4, 5, 6, 7)


class Stand:
    """One pod's engine and publisher, and a router that copies it."""

    def __init__(self, server: AskedServer, prefix: str, index: Index) -> None:
        self.server = server
        self.names = KeyNames(prefix, buckets=3)
        self.now = 0.0
        server.clock = lambda: self.now
        self.lives = 0
        self.engine = EngineModel()
        self.begin_publisher()
        self.ingest = new_ingest(lambda: index, stale_after=30.0, clock=lambda: self.now)
        self.settled: list[str] = []
        self.replica = Replica(
            server,
            self.names,
            poll_seconds=0.05,
            clock=lambda: self.now,
            settled=self.settled.append,
        )
        self.rank: WatchedRank = self.ingest.watch("p", 0)
        self.replica.add("p", [self.rank], "keyspace")

    def begin_publisher(self) -> None:
        """Have another life of the publisher take over."""
        self.lives += 1
        self.publisher = PublisherModel(
            self.names,
            "p",
            [self.engine],
            life=self.lives,
            do=self.server.do,
            clock=lambda: self.now,
        )

    def store(self, tokens: tuple[int, ...] = PROMPT) -> None:
        self.publisher.heard(0, self.engine.store(tokens))
        self.publisher.cache.collect()

    def write(self) -> None:
        """Let the publisher write what there is."""
        for _ in range(500):
            self.publisher.write(1)
            if self.publisher.is_current:
                return
        raise AssertionError("the writer never catches up")

    def audit(self) -> None:
        self.publisher.audit()

    async def poll(self, times: int = 1, *, confirms: bool = True) -> None:
        """Let the router poll, and mostly the publisher confirm before each poll."""
        for _ in range(times):
            self.now += SCAN_PAUSE
            if confirms:
                self.publisher.confirm()
            await self.replica.step()
            self.ingest.tick(1000)
            check_replica(self.replica)
            check(self.ingest)

    async def heal(self) -> None:
        """Let what was copied be confirmed."""
        self.audit()
        self.audit()
        await self.poll()
        self.is_true()

    async def hold(self) -> None:
        """Hold a prompt that is copied and confirmed."""
        self.store()
        await self.believe()

    async def believe(self) -> None:
        """Let everything be copied and confirmed."""
        self.write()
        await self.poll(3)
        self.audit()
        self.audit()
        await self.poll(2)
        self.is_true()

    def is_true(self) -> None:
        """Assert that the copy is exact, and what the publisher holds."""
        assert self.rank.trust.level is Level.EXACT, self.rank.trust
        check(self.rank._slots, self.publisher.truths[self.publisher.writer.applied][0])

    @property
    def copy(self) -> object:
        return self.replica._copies["p"]

    def resyncs(self) -> dict[Resync, int]:
        return dict(self.replica.counts.resyncs)

    def blocks(self, tier: Tier = Tier.GPU) -> int:
        return self.rank.blocks().get(tier, 0)


@pytest.fixture(params=[ArrayIndex, MemoryIndex], ids=["arrays", "pure"])
def stand(request: pytest.FixtureRequest, asked_server: AskedServer, prefix: str) -> Stand:
    return Stand(asked_server, prefix, request.param(1 << 20))


async def test_what_is_there_is_copied_and_what_changes_follows(stand: Stand) -> None:
    await stand.hold()
    assert stand.blocks() == 4
    assert stand.settled == ["every pod that has a publisher is copied"]
    stand.store((9, 9, 9, 9))
    stand.publisher.heard(0, stand.engine.offload(0))
    stand.publisher.cache.collect()
    stand.write()
    await stand.poll()
    stand.is_true()
    assert (stand.blocks(), stand.blocks(Tier.CPU)) == (6, 1)
    assert stand.resyncs() == {Resync.START: 1}


async def test_nothing_is_exact_before_its_writer_has_audited_twice(stand: Stand) -> None:
    stand.store()
    stand.write()
    await stand.poll(3)
    assert stand.blocks() == 4
    assert stand.rank.trust.level is Level.DEGRADED
    stand.audit()
    await stand.poll()
    assert stand.rank.trust.level is Level.DEGRADED
    stand.audit()
    await stand.poll()
    stand.is_true()


async def test_a_lost_connection_casts_doubt_until_two_audits_later(stand: Stand) -> None:
    await stand.hold()
    stand.server.disruptions += 1
    await stand.poll()
    assert stand.rank.trust.level is Level.DEGRADED
    assert "confirmed" in stand.rank.trust.reason
    assert stand.blocks() == 4
    await stand.heal()
    assert stand.resyncs() == {Resync.START: 1}


def cut_log(stand: Stand) -> None:
    for tokens in ((6, 6), (7, 7)):
        stand.store(tokens)
        stand.write()
    stand.server.client.xtrim(stand.names.log("p"), maxlen=1, approximate=False)


def lose_log(stand: Stand) -> None:
    stand.server.client.delete(stand.names.log("p"))


def spoil_log(stand: Stand) -> None:
    name, position = stand.names.log("p"), stand.publisher.writer.applied
    stand.server.client.delete(name)
    stand.server.client.xadd(name, {"first": position, "deltas": b"\xff\xff"}, f"{position}-0")


@pytest.mark.parametrize(
    ("mishap", "why"),
    [(cut_log, Resync.LOG), (lose_log, Resync.LOG), (spoil_log, Resync.MALFORMED)],
)
async def test_a_log_of_which_something_is_missing_is_made_up_for_from_the_buckets(
    stand: Stand, mishap: Callable[[Stand], None], why: Resync
) -> None:
    await stand.hold()
    stand.store((5, 5))
    stand.write()
    mishap(stand)
    await stand.poll(2)
    assert stand.rank.trust.level is Level.DEGRADED
    assert stand.blocks() >= 4, "what was held stays while the buckets are read"
    await stand.poll()
    await stand.heal()
    assert stand.resyncs() == {Resync.START: 1, why: 1}


async def test_an_idle_log_that_has_expired_is_no_loss(stand: Stand) -> None:
    await stand.hold()
    stand.server.client.delete(stand.names.log("p"))
    await stand.poll(3)
    stand.is_true()
    assert stand.resyncs() == {Resync.START: 1}


async def test_everything_is_copied_anew_from_a_publisher_that_has_taken_over(stand: Stand) -> None:
    await stand.hold()
    stand.engine.restart()
    stand.begin_publisher()
    stand.store((8, 8, 8, 8))
    await stand.believe()
    assert stand.blocks() == 2
    assert stand.resyncs() == {Resync.START: 1, Resync.CLAIM: 1}


async def test_a_pod_whose_lease_is_over_holds_nothing_and_is_not_connected(stand: Stand) -> None:
    await stand.hold()
    assert stand.rank.is_connected
    life = stand.ingest.life("p", 0)
    stand.server.client.delete(stand.names.record("p"))
    await stand.poll()
    assert stand.rank.trust.level is Level.COLD
    assert not stand.rank.is_connected
    assert stand.blocks() == 0
    assert stand.ingest.life("p", 0) != life
    await stand.poll()
    assert stand.ingest.life("p", 0) == life + 1


async def test_a_rank_that_was_emptied_begins_anew(stand: Stand) -> None:
    await stand.hold()
    life = stand.ingest.life("p", 0)
    stand.publisher.heard(0, stand.engine.clear())
    stand.publisher.cache.collect()
    stand.store((3, 3))
    stand.write()
    await stand.poll()
    stand.is_true()
    assert stand.blocks() == 1
    assert stand.ingest.life("p", 0) == life + 1
    claim = stand.server.client.hget(stand.names.record("p"), "claim")
    assert claim
    places = msgspec.json.decode(claim, type=Claim).places
    assert places[0] is None
    assert places[-1] is not None


async def test_redis_away_leaves_a_degraded_copy_that_is_stale_in_the_end(stand: Stand) -> None:
    await stand.hold()
    stand.server.is_away = True
    await stand.poll()
    assert stand.rank.trust.level is Level.DEGRADED
    assert "it is away" in stand.rank.trust.reason
    assert stand.rank.is_connected, "that Redis is away says nothing of the pod"
    stand.now += 30
    await stand.poll()
    assert stand.rank.trust.level is Level.STALE
    stand.server.is_away = False
    stand.store((5, 5))
    stand.write()
    await stand.poll()
    assert stand.rank.trust.level is not Level.EXACT, (
        "all of it may be as old as the last good poll"
    )
    await stand.heal()
    assert stand.resyncs() == {Resync.START: 1}


async def test_a_record_that_is_confirmed_no_more_is_late_and_then_stale_until_it_goes_on(
    stand: Stand,
) -> None:
    await stand.hold()
    begun = stand.replica._copies["p"].moment
    while stand.now + SCAN_PAUSE <= begun + PROMISED_SECONDS:
        await stand.poll(confirms=False)
        stand.is_true()
    await stand.poll(2, confirms=False)
    assert stand.rank.trust.level is Level.DEGRADED
    assert stand.rank.trust.reason == LATE
    assert stand.rank.is_connected, "that its publisher is silent says nothing of the pod"
    while stand.now < begun + PROMISED_SECONDS + 31:
        await stand.poll(confirms=False)
    assert (stand.rank.trust.level, stand.rank.trust.reason) == (Level.STALE, LATE)
    assert stand.rank.is_connected
    await stand.poll(2)
    stand.is_true()
    assert stand.resyncs() == {Resync.START: 1}


async def test_what_becomes_late_between_two_polls_is_exact_in_no_answer(stand: Stand) -> None:
    await stand.hold()
    stand.ingest.replica = stand.replica
    stand.now += PROMISED_SECONDS - 2 * SCAN_PAUSE
    stand.ingest.expire()
    stand.is_true()
    stand.now += 3 * SCAN_PAUSE
    stand.ingest.expire()
    assert stand.rank.trust.level is Level.DEGRADED
    assert stand.rank.trust.reason == LATE
    await stand.poll(2)
    stand.is_true()
    stand.ingest.expire()
    stand.is_true()


async def test_what_is_limited_for_another_reason_keeps_it_when_other_pods_become_late(
    stand: Stand,
) -> None:
    await stand.hold()
    stand.publisher.end()
    await stand.poll(confirms=False)
    said = stand.rank.trust
    assert "has ended" in said.reason
    stand.now += 2 * PROMISED_SECONDS
    stand.replica.expire(stand.now)
    assert stand.rank.trust == said


async def test_a_copy_that_has_not_what_was_confirmed_is_as_old_as_before(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stand.hold()
    copy = stand.replica._copies["p"]
    before = copy.moment

    def write_and_confirm() -> None:
        stand.store((5, 5))
        stand.write()
        stand.publisher.confirm()

    # All of it comes between the reading of the log and that of the record.
    Hooked(stand, monkeypatch, "XRANGE", write_and_confirm, after=True)
    stand.now += SCAN_PAUSE
    await stand.replica.step()
    assert copy.position < stand.publisher.writer.applied
    assert copy.moment == before
    stand.now += SCAN_PAUSE
    await stand.replica.step()
    assert copy.position == stand.publisher.writer.applied
    assert copy.moment > before
    stand.is_true()


async def test_redis_away_at_the_start_is_said_and_settles_the_router(stand: Stand) -> None:
    stand.server.is_away = True
    await stand.poll()
    assert stand.rank.trust.level is Level.COLD
    assert "it is away" in stand.rank.trust.reason
    failed = "the first attempt to copy the pods failed, and others follow: "
    assert stand.settled == [f"{failed}the shared index: it is away"]
    stand.server.is_away = False
    await stand.hold()


async def test_a_router_is_settled_when_the_pods_that_it_came_to_know_are_copied(
    stand: Stand,
) -> None:
    stand.write()
    stand.replica.remove("p")
    await stand.poll()
    assert not stand.settled, "no pod is known yet"
    stand.replica.add("p", [stand.rank], "keyspace")
    stand.replica._settle_if_ready()
    assert not stand.settled, "the pod was not asked for yet"
    await stand.poll()
    assert not stand.settled, "the pod is being copied"
    await stand.poll()
    assert stand.settled == ["every pod that has a publisher is copied"]


async def test_a_router_without_pods_is_settled_after_a_while(stand: Stand) -> None:
    stand.replica.remove("p")
    await stand.poll()
    assert not stand.settled
    await stand.poll(4)
    assert len(stand.settled) == 1


async def test_a_pod_that_is_followed_no_longer_is_not_asked_for(stand: Stand) -> None:
    stand.store()
    stand.write()
    await stand.poll()
    stand.replica.remove("p")
    stand.ingest.remove("p", 0)
    await stand.poll(3)
    assert stand.replica.lags() == {}
    assert stand.resyncs() == {Resync.START: 1}
    assert stand.ingest.index.stats().entries == 0


async def test_another_keyspace_is_logged_once(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    stand.write()
    stand.replica.remove("p")
    stand.replica.add("p", [stand.rank], "another")
    with caplog.at_level(logging.WARNING):
        await stand.poll(3)
    assert stand.rank.trust.level is Level.COLD
    assert len([line for line in caplog.messages if "pod p: keyspace: " in line]) == 1


async def test_another_number_of_ranks_is_refused_by_name(stand: Stand) -> None:
    stand.store()
    stand.write()
    stand.replica.remove("p")
    other = stand.ingest.watch("p", 1)
    stand.replica.add("p", [stand.rank, other], "keyspace")
    await stand.poll(2)
    assert stand.rank.trust.reason == "the publisher follows 1 ranks, but 2 are configured"
    assert stand.rank.trust.level is Level.COLD


async def test_a_pass_over_the_buckets_that_fails_half_way_is_finished_later(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.store()
    stand.write()
    run = stand.server.run
    failures = iter([True, True])

    async def fails(asked, *, timeout):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        is_scan = isinstance(asked[0], Command) and asked[0].words[0] == "HSCAN"
        stand.server.is_away = is_scan and next(failures, False)
        return await run(asked, timeout=timeout)

    monkeypatch.setattr(stand.server, "run", fails)
    await stand.poll(4)
    assert stand.replica._copies["p"].state is CopyState.FOLLOWING
    await stand.believe()


def half_a_batch(stand: Stand) -> None:
    """Have the writer confirm all twice, and then end between a batch's buckets and its entry."""
    stand.audit()
    stand.audit()
    stand.store((5, 5, 6, 6, 7, 7))
    changes = stand.publisher.writer.counts.changes
    while stand.publisher.writer.counts.changes == changes:
        stand.publisher.write(1)
    assert stand.publisher.writer.applied < stand.publisher.cache.journal.sequence


class Hooked:
    """Runs what a test wants once, before the first command of a kind or after it."""

    def __init__(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch, verb: str, hook: Callable[[], None],
        *, after: bool = False,
    ) -> None:  # fmt: skip
        self.hook: Callable[[], None] | None = hook
        do = stand.server.do

        def asked(one: Command | Call) -> Reply:
            now = isinstance(one, Command) and one.words[0] == verb and self.hook
            hook, self.hook = (self.hook, None) if now else (None, self.hook)
            if hook and not after:
                hook()
            reply = do(one)
            if hook and after:
                hook()
            return reply

        monkeypatch.setattr(stand.server, "do", asked)


async def test_what_was_being_written_when_the_buckets_were_read_is_not_exact_yet(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.store()
    stand.write()
    stand.audit()
    await stand.replica._poll()
    hooked = Hooked(stand, monkeypatch, "HSCAN", lambda: half_a_batch(stand))
    await stand.poll(3)
    assert hooked.hook is None
    copy = stand.replica._copies["p"]
    assert copy.state is CopyState.FOLLOWING
    assert stand.rank.trust.level is Level.DEGRADED
    assert "has not audited" in stand.rank.trust.reason
    stand.write()
    await stand.poll()
    assert stand.rank.trust.level is Level.DEGRADED
    await stand.heal()


async def test_an_audit_confirms_only_what_the_copy_has(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.store()
    stand.write()
    await stand.replica._poll()
    Hooked(stand, monkeypatch, "HSCAN", lambda: half_a_batch(stand))
    await stand.poll(2)
    copy = stand.replica._copies["p"]
    assert copy.state is CopyState.FOLLOWING
    position = copy.position

    def finish() -> None:
        stand.write()
        stand.audit()
        stand.audit()

    hooked = Hooked(stand, monkeypatch, "XRANGE", finish, after=True)
    await stand.poll()
    assert hooked.hook is None
    assert copy.position == position < stand.publisher.writer.applied
    assert stand.rank.trust.level is Level.DEGRADED
    await stand.poll()
    stand.is_true()
