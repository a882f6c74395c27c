"""What records say of ranks, and what is said of them where they cannot be read.

One file: all tests read one stand's records.
"""

import logging
import math

import msgspec
import pytest

from tests.indexer.shared.asked_server import HeldRedis
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.names import SCHEMA, KeyNames
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.records.record_source import RemoteRank
from warmpath.indexer.shared.records.registry import LATE, UNCONFIRMED, Registry
from warmpath.indexer.shared.redis.command import CommandRefusedError, Reply, UnreachableError
from warmpath.indexer.trust import Level, Trust
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

NAMES = KeyNames("t")
CLAIM = Claim("o", 1, [SpotOf(0, Tier.GPU, 0)], "ours", "m", 1)
STATE = pb.RankState(
    rank=0,
    trust="exact",
    reason="all was seen",
    groups=[pb.Group(number=0, kind="full_attention", block_size=16)],
    engine_sequence=7,
)
RECORD = {
    b"token": b"3", b"claim": msgspec.json.encode(CLAIM), b"applied": b"9", b"audits": b"5",
    b"sound": b"5:0", b"state:0": STATE.SerializeToString(), b"blocks:0": b'{"gpu":4}',
}  # fmt: skip


P, Q = NAMES.record("p"), NAMES.record("q")


class Stand:
    def __init__(self) -> None:
        self.redis = HeldRedis()
        self.redis.hashes[P] = dict(RECORD)
        self.schema(SCHEMA)
        self.now = 0.0
        self.registry = Registry(self.redis, NAMES, lambda: self.now)
        self.rank = self.new_rank()

    def new_rank(self, keyspace: str = "ours", ranks: int = 1) -> RemoteRank:
        return RemoteRank(
            "p", 0, self.registry, keyspace=keyspace, ranks=ranks, stale_after=5.0,
            close=lambda _: None, clock=lambda: self.now,
        )  # fmt: skip

    def schema(self, version: int) -> None:
        said = {b"schema": b"%d" % version, b"buckets": b"64", b"segment": b"64"}
        self.redis.hashes[NAMES.schema] = said if version else {}

    async def read(self, audits: int = 5, **changes: bytes) -> tuple[Level, str]:
        said = self.redis.hashes[P]
        if isinstance(said, dict) and said:
            is_sound = {b"sound": b"%d:0" % audits} if b"sound" in said else {}
            said |= is_sound | {b"audits": b"%d" % audits}
            said |= {n.encode(): v for n, v in changes.items()}
        await self.registry.read(["p"], [], 1.0)
        self.rank.record_read(self.registry.reading("p").problem)
        return self.rank.trust.level, self.rank.trust.reason

    async def confirmed(self) -> None:
        await self.read(5)
        assert await self.read(7) == (Level.EXACT, "all was seen")


@pytest.fixture
def stand() -> Stand:
    return Stand()


async def test_a_sound_record_is_believed_once_its_writer_has_audited(stand: Stand) -> None:
    assert (await stand.read(5))[0] is Level.DEGRADED
    assert (await stand.read(6))[0] is Level.DEGRADED
    assert await stand.read(7) == (Level.EXACT, "all was seen")
    assert stand.rank.is_connected
    assert stand.rank.sequence == 7
    assert stand.rank.layout.block_size == 16
    assert stand.rank.blocks() == {Tier.GPU: 4}


async def test_the_engines_capacity_counts_for_as_long_as_the_record_says_none(
    stand: Stand,
) -> None:
    stand.rank.learn_capacity(96)
    assert stand.rank.capacity == 96, "no record was read yet"
    await stand.read()
    assert stand.rank.capacity == 96
    says = pb.RankState(capacity=50)
    says.MergeFrom(STATE)
    await stand.read(**{"state:0": says.SerializeToString()})
    assert stand.rank.capacity == 50


async def test_trust_is_one_object_as_long_as_nothing_changes(stand: Stand) -> None:
    await stand.confirmed()
    before = stand.rank.trust
    stand.now = 3.0
    await stand.read(8)
    assert stand.rank.trust is before


async def test_what_is_not_sound_is_degraded_for_the_records_reason(stand: Stand) -> None:
    await stand.confirmed()
    del stand.redis.hashes[P][b"sound"]
    said = await stand.read(8, reason=b"a bucket has lost writes")
    assert said == (Level.DEGRADED, "a bucket has lost writes")


async def test_what_its_publisher_does_not_believe_nobody_does(stand: Stand) -> None:
    await stand.confirmed()
    stale = pb.RankState(rank=0, trust="stale", reason="the engine's stream is gone")
    said = await stand.read(8, **{"state:0": stale.SerializeToString()})
    assert said == (Level.STALE, "the engine's stream is gone")
    assert not stand.rank.is_connected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"keyspace": "theirs"}, "keyspace:"),
        ({"ranks": 4}, "follows 1 ranks, but 4 are configured"),
    ],
)
async def test_another_keyspace_or_number_of_ranks_is_refused(
    stand: Stand, changes: dict[str, object], reason: str
) -> None:
    stand.rank = stand.new_rank(**changes)  # type: ignore[arg-type]
    level, said = await stand.read()
    assert level is Level.COLD
    assert reason in said
    assert stand.rank.refused
    assert stand.rank.blocks() == {}


async def test_no_record_is_no_pod(stand: Stand) -> None:
    await stand.confirmed()
    stand.redis.hashes[P] = {}
    level, reason = await stand.read()
    assert level is Level.COLD
    assert "no publisher" in reason
    assert stand.rank.blocks() == {}
    assert not stand.rank.is_connected


async def test_what_cannot_be_read_is_degraded_and_then_stale(stand: Stand) -> None:
    await stand.confirmed()
    stand.redis.hashes[P] = UnreachableError("no answer")
    stand.now = 4.0
    assert await stand.read() == (Level.DEGRADED, "the shared index: no answer")
    assert stand.rank.blocks() == {Tier.GPU: 4}
    # That the index is away says nothing about the engine's connection.
    assert stand.rank.is_connected
    stand.now = 5.0
    assert await stand.read() == (Level.STALE, "the shared index: no answer")
    stand.redis.hashes[P] = dict(RECORD)
    assert (await stand.read(9))[0] is Level.DEGRADED
    assert (await stand.read(10))[0] is Level.DEGRADED
    assert await stand.read(11) == (Level.EXACT, "all was seen")


@pytest.mark.parametrize(
    "unread",
    [
        UnreachableError("no answer within 0.5 s"),
        CommandRefusedError("NOPERM this user has no permissions"),
        {b"token": b"x"},
    ],
    ids=["late", "refused", "malformed"],
)
async def test_a_record_that_could_not_be_read_is_doubted_until_its_writer_has_audited(
    stand: Stand, unread: Reply
) -> None:
    stand.redis.hashes[Q] = dict(RECORD)

    async def limits(audits: int) -> tuple[str, str]:
        for pod in "pq":
            if stand.redis.hashes[NAMES.record(pod)] is not unread:
                counted = {b"audits": b"%d" % audits, b"sound": b"%d:0" % audits}
                stand.redis.hashes[NAMES.record(pod)] |= counted
        await stand.registry.read(["p", "q"], [], 1.0)
        return stand.registry.limit("p"), stand.registry.limit("q")

    await limits(5)
    assert await limits(7) == ("", "")
    stand.redis.hashes[P] = unread
    await limits(8)
    stand.redis.hashes[P] = dict(RECORD)
    assert await limits(9) == (UNCONFIRMED, "")
    assert await limits(10) == (UNCONFIRMED, "")
    assert await limits(11) == ("", "")


async def test_only_the_pods_whose_node_is_away_are_not_read(stand: Stand) -> None:
    stand.redis.hashes[Q] = CommandRefusedError("CLUSTERDOWN")
    await stand.registry.read(["p", "q"], [], 1.0)
    assert stand.registry.reading("p").record
    assert stand.registry.reading("q").record is None
    assert not stand.registry.reading("p").problem
    assert "CLUSTERDOWN" in stand.registry.reading("q").problem


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token", b"x"),
        ("claim", b"{"),
        ("claim", b'{"owner": 1}'),
        ("state:0", b"\xff\xff"),
        ("blocks:0", b"[]"),
    ],
)
async def test_a_record_that_cannot_be_read_is_a_problem_and_no_crash(
    stand: Stand, field: str, value: bytes
) -> None:
    await stand.confirmed()
    stand.now = 60.0
    level, reason = await stand.read(8, **{field: value})
    assert level is Level.STALE
    assert "cannot be read" in reason


async def test_another_schema_is_named_until_it_is_gone(stand: Stand) -> None:
    stand.schema(99)
    level, reason = await stand.read()
    assert level is Level.COLD
    assert "schema 99" in reason
    assert "schema 99" in (await stand.read())[1]
    stand.schema(SCHEMA)
    assert (await stand.read())[0] is Level.DEGRADED


async def test_redis_answers_whatever_it_holds(stand: Stand) -> None:
    await stand.read(8, token=b"x")
    assert stand.registry.is_answered
    stand.schema(99)
    stand.redis.disruptions += 1
    await stand.read()
    assert stand.registry.is_answered
    stand.redis.hashes[Q] = UnreachableError("it is away")
    await stand.registry.read(["p", "q"], [], 1.0)
    assert not stand.registry.is_answered


async def test_where_nobody_has_written_yet_another_schema_is_noticed_when_it_comes(
    stand: Stand,
) -> None:
    stand.schema(0)
    assert (await stand.read())[0] is Level.DEGRADED
    stand.schema(99)
    assert "schema 99" in (await stand.read())[1]


async def test_why_a_pod_is_cold_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stand = Stand()
    stand.redis.hashes[P] = CommandRefusedError("WRONGPASS once")
    await stand.read()
    stand.redis.hashes[P] = CommandRefusedError("WRONGPASS again, in other words")
    await stand.read()
    stand.redis.hashes[P] = {}
    for _ in range(2):
        await stand.read()
    assert caplog.messages == [
        "pod p: the shared index: WRONGPASS once",
        "pod p: no publisher holds the pod in the shared index under prefix 't'",
    ]


async def test_each_disruption_casts_doubt_again(stand: Stand) -> None:
    await stand.confirmed()
    stand.redis.disruptions += 1
    assert (await stand.read(7))[0] is Level.DEGRADED
    assert (await stand.read(9))[0] is Level.EXACT
    stand.registry.forget("p")
    assert (await stand.read(9))[0] is Level.DEGRADED


async def test_other_words_for_the_same_trouble_do_not_begin_it_anew() -> None:
    stand = Stand()
    await stand.confirmed()
    stand.now = 10.0
    stand.redis.hashes[P] = UnreachableError("refused")
    assert (await stand.read())[0] is Level.STALE
    stand.now = 20.0
    stand.redis.hashes[P] = UnreachableError("no answer")
    assert await stand.read() == (Level.STALE, "the shared index: no answer")
    assert stand.rank.trust.since == 10.0


async def test_the_log_has_the_level_from_before_also_where_redis_lowered_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand = Stand()
    await stand.confirmed()
    caplog.set_level(logging.INFO)
    stand.now = 2.0
    stand.rank.doubt(Trust(Level.DEGRADED, "left alone", 1.0))
    assert (await stand.read(8))[0] is Level.DEGRADED
    stand.now = 20.0
    stand.redis.hashes[P] = UnreachableError("refused")
    assert (await stand.read())[0] is Level.STALE
    assert (stand.rank.trust.since, stand.rank.inexact_since) == (20.0, 1.0)
    stand.rank.doubt(None)
    stand.redis.hashes[P] = {}
    assert (await stand.read())[0] is Level.COLD
    assert stand.rank.inexact_since == 1.0
    assert [line.split(": ")[1] for line in caplog.messages] == [
        "degraded, was exact",
        "stale, was degraded",
        "cold, was stale",
    ]


async def test_changes_of_trust_are_logged_and_another_keyspace_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand = Stand()
    caplog.set_level(logging.INFO)
    await stand.confirmed()
    await stand.read(8)
    assert [line for line in caplog.messages if "exact, was" in line] == [
        "pod p rank 0: exact, was degraded: all was seen"
    ]
    stand.rank = stand.new_rank("theirs", ranks=1)
    for _ in range(3):
        await stand.read(9)
    assert len([line for line in caplog.messages if "pod p: keyspace: " in line]) == 1
    stand.redis.hashes[P] = {}
    await stand.read()
    assert (
        stand.rank.trust.reason == "no publisher holds the pod in the shared index under prefix 't'"
    )


async def test_a_record_that_is_lost_says_nothing_of_the_engine(stand: Stand) -> None:
    await stand.confirmed()
    stand.now = 3.0
    stand.redis.hashes[P] = {}
    assert (await stand.read())[0] is Level.COLD
    assert not stand.rank.is_connected
    assert stand.rank.lost_at == -math.inf, "Redis lost its data; the pod goes on serving"


async def confirmed_at(stand: Stand, *confirmations: tuple[float, bytes]) -> tuple[Level, str]:
    """Read the record at these times with these values of `sound`; return what is said at the last."""
    said = stand.rank.trust.level, stand.rank.trust.reason
    for stand.now, sound in confirmations:
        said = await stand.read(100, sound=sound)
    return said


async def test_a_record_that_is_confirmed_no_more_is_late_and_then_stale_until_it_goes_on(
    stand: Stand,
) -> None:
    await stand.confirmed()
    seen = (0.5, b"101:0"), (1.0, b"102:0"), (1.5, b"103:0")
    assert (await confirmed_at(stand, *seen))[0] is Level.EXACT
    assert stand.registry.reading("p").moment.at == 0.5, "the third says when Redis took the second"
    assert (await confirmed_at(stand, (3.5, b"103:0")))[0] is Level.EXACT
    assert await confirmed_at(stand, (3.6, b"103:0")) == (Level.DEGRADED, LATE)
    assert await confirmed_at(stand, (5.5, b"103:0")) == (Level.STALE, LATE)
    # That its writer is silent says nothing about the engine's connection.
    assert stand.rank.is_connected
    assert await confirmed_at(stand, (6.0, b"104:0")) == (Level.STALE, LATE), "the last may be old"
    assert await confirmed_at(stand, (6.5, b"105:0")) == (Level.EXACT, "all was seen")


async def test_what_a_confirmation_is_behind_counts(stand: Stand) -> None:
    await stand.confirmed()
    for number in range(101, 130):
        level, _ = await confirmed_at(stand, (number / 2 - 50, b"%d:1900" % number))
        assert level is Level.EXACT
    for number in range(130, 140):
        level, reason = await confirmed_at(stand, (number / 2 - 50, b"%d:2400" % number))
    assert (level, reason) == (Level.DEGRADED, LATE)


async def test_a_confirmation_that_nobody_saw_come_says_nothing_of_when_it_came(
    stand: Stand,
) -> None:
    await stand.read(5, sound=b"7:0")
    assert await confirmed_at(stand, (1.0, b"7:0")) == (Level.DEGRADED, LATE)
    assert await confirmed_at(stand, (2.0, b"8:0")) == (Level.DEGRADED, LATE)
    assert (await confirmed_at(stand, (3.0, b"9:0")))[0] is Level.EXACT
    assert stand.registry.reading("p").moment.at == 1.0


async def test_a_confirmation_of_which_no_other_says_how_late_it_was_does_not_count(
    stand: Stand,
) -> None:
    await stand.confirmed()
    await confirmed_at(stand, (1.0, b"101:0"), (2.0, b"102"), (3.0, b"103"))
    assert stand.registry.reading("p").moment.at == 0.0
    await confirmed_at(stand, (4.0, b"104:0"))
    assert stand.registry.reading("p").moment.at == 2.0


async def test_a_record_that_goes_back_is_doubted_until_it_was_audited_twice(stand: Stand) -> None:
    await stand.confirmed()
    await confirmed_at(stand, (0.5, b"102:0"))
    stand.now = 1.0
    assert await stand.read(100, sound=b"100:0") == (Level.DEGRADED, UNCONFIRMED)
    assert stand.registry.reading("p").moment.at == -math.inf
    stand.now = 1.5
    for audits in (101, 102):
        said = await stand.read(audits, sound=b"%d:0" % (audits + 4))
        assert said == (Level.DEGRADED, UNCONFIRMED)
    assert await stand.read(103, sound=b"107:0") == (Level.EXACT, "all was seen")


async def test_readings_that_fail_say_nothing_of_when_a_confirmation_came(stand: Stand) -> None:
    await stand.confirmed()
    await confirmed_at(stand, (1.0, b"102:0"))
    kept, stand.redis.hashes[P] = stand.redis.hashes[P], UnreachableError("no answer")
    for stand.now in (2.0, 3.0, 4.0):
        await stand.read()
    stand.redis.hashes[P] = kept
    await confirmed_at(stand, (4.5, b"104:0"))
    assert stand.registry.reading("p").moment.at == 1.0, (
        "it may have come at once after the last good reading"
    )
