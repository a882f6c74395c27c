"""What the shared index does beyond the contract: segments, claims, losses, answers that are lost."""

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from tests.indexer.shared.redis_index import LostError, RedisIndex
from tests.servers.redis_server import RedisServer
from warmpath.indexer.index.contract import Stretch
from warmpath.indexer.index.reference import ReferenceIndex
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.layout.living import read_owner
from warmpath.indexer.shared.layout.names import BORN, WRITES, KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import SpotOf, read_record
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandRefusedError,
    Redis,
    Reply,
    UnreachableError,
)
from warmpath.indexer.shared.redis.connect import RedisSettings, connect
from warmpath.process.invariant import BrokenInvariantError


class Flaky:
    """An edge that now and then does not carry out what it is asked, or not say that it did."""

    def __init__(self, redis: Redis, rng: Random) -> None:
        self._redis = redis
        self._rng = rng
        self.lost = 0
        self.quiet = 0
        """Rounds in which nothing is lost."""

    @property
    def disruptions(self) -> int:
        return self.lost

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        if self.quiet or self._rng.random() < 0.5:
            self.quiet = max(0, self.quiet - 1)
            return await self._redis.run(asked, timeout=timeout)
        self.quiet = 1
        self.lost += 1
        carried = [number for number in range(len(asked)) if self._rng.random() < 0.7]
        answered = await self._redis.run([asked[number] for number in carried], timeout=timeout)
        replies: list[Reply] = [UnreachableError("cut") for _ in asked]
        for number, reply in zip(carried, answered, strict=True):
            if self._rng.random() < 0.7:
                replies[number] = reply
        return replies

    async def close(self) -> None:
        await self._redis.close()


@pytest.fixture
def names(prefix: str) -> KeyNames:
    return KeyNames(prefix)


@pytest.fixture
def index(redis_server: RedisServer, names: KeyNames) -> Iterator[RedisIndex]:
    with made(redis_server, names) as index:
        yield index


def made(server: RedisServer, names: KeyNames, pod: str = "index") -> RedisIndex:
    return RedisIndex(lambda: connect(RedisSettings(server.url)), names, pod=pod)


def chain_of(blocks: int, number: int = 0) -> Chain:
    return Chain(number, bytes(4 * 16 * blocks), 16, blocks)


def fields_of(server: RedisServer, names: KeyNames) -> dict[bytes, bytes]:
    with server.client() as client:
        found: dict[bytes, bytes] = {}
        for bucket in range(names.buckets):
            found |= client.hgetall(names.bucket(bucket))
    for field in (checkpoint("index"), BORN, WRITES):
        found.pop(field, None)
    return found


def test_blocks_of_known_chains_lie_in_segments(
    index: RedisIndex, redis_server: RedisServer, names: KeyNames
) -> None:
    long, other = chain_of(200), chain_of(100, 1)
    for chain in (long, other):
        index.segments.chained(chain.root, chain.keys())
        index.add(3, chain.keys())
    index.add(4, long.keys()[:150])
    assert sorted(index.match(long)) == [Stretch(3, 0, 200), Stretch(4, 0, 150)]
    assert index.match(other) == [Stretch(3, 0, 100)]
    starts = [*long.keys()[::SEGMENT], *other.keys()[::SEGMENT]]
    assert set(fields_of(redis_server, names)) == {key.to_bytes(8, "little") for key in starts}
    index.check()
    index.remove(3, long.keys())
    index.remove(4, long.keys())
    assert sorted(index.match(long)) == []
    assert index.stats().keys == 100


def test_prompts_that_part_share_what_they_have_in_common(
    index: RedisIndex, redis_server: RedisServer, names: KeyNames
) -> None:
    trunk = chain_of(100).keys()
    for branch in range(5):
        keys = [*trunk[:90], *range(1000 + 100 * branch, 1080 + 100 * branch)]
        index.segments.chained(0, keys)
        index.add(branch, keys)
    # Two of the trunk, and one of each branch's blocks behind the second.
    assert len(fields_of(redis_server, names)) == 2 + 5
    for branch in range(5):
        keys = [*trunk[:90], *range(1000 + 100 * branch, 1080 + 100 * branch)]
        assert sorted(index.stretches(keys)) == [
            Stretch(slot, 0, 170 if slot == branch else 90) for slot in range(5)
        ]


def test_what_is_lost_is_noticed(
    index: RedisIndex, redis_server: RedisServer, names: KeyNames
) -> None:
    index.add(1, [7])
    redis_server.ask("DEL", names.bucket(7))
    with pytest.raises(BrokenInvariantError, match="bucket 7 is not as it was left"):
        index.check()
    with pytest.raises(LostError, match="bucket 7"):
        index.add(1, [7])


def test_a_later_claim_refuses_the_earlier_ones_writes(
    index: RedisIndex, redis_server: RedisServer, names: KeyNames
) -> None:
    index.add(1, [7])
    with made(redis_server, names) as later:
        assert later.stretches([7]) == []
        later.add(1, [8])
        with pytest.raises(LostError):
            index.add(1, [9])
        assert later.stretches([9]) == []
        later.check()


def test_two_pods_do_not_see_each_other(
    index: RedisIndex, redis_server: RedisServer, names: KeyNames
) -> None:
    index.add(1, [7, 8])
    with made(redis_server, names, "other") as other:
        other.add(1, [8])
        other.add(2, [8])
        assert sorted(other.stretches([7, 8])) == [Stretch(1, 1, 2), Stretch(2, 1, 2)]
        assert (other.stats().keys, other.stats().entries, other.stats().slots) == (1, 2, 2)
        assert other.count(1) == 1
        other.check()
    assert index.stretches([7, 8]) == [Stretch(1, 0, 2)]
    index.check()


def test_the_record_says_what_slots_stand_for(
    index: RedisIndex, redis_server: RedisServer, names: KeyNames
) -> None:
    index.add(5, [1])
    index.add(9, [1])
    index.drop(5)
    record = read_record(redis_server.client().hgetall(names.record("index")))
    assert record is not None
    assert record.claim is not None
    assert [place and place.rank for place in record.claim.places] == [None, 9]
    assert not record.sound
    index.add(5, [1])
    index.drop(9)
    words = redis_server.client().hmget(names.record("index"), "token", "claim", "building")
    owner = read_owner("index", words)
    assert owner is not None
    assert owner.claim is not None
    assert owner.claim.places == [None, None, SpotOf(5, record.claim.places[1].tier, 0)]  # type: ignore[union-attr]


@pytest.mark.parametrize("slot", [-1, 65536])
def test_a_slot_out_of_range_is_refused(index: RedisIndex, slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot}: this index has slots 0 to 65535"):
        index.add(slot, [1])


def test_a_hot_segment_spills_and_is_found(index: RedisIndex) -> None:
    trunk = chain_of(60).keys()
    branches = [[*trunk, 10_000 + n, 20_000 + n] for n in range(400)]
    for number, keys in enumerate(branches):
        index.segments.chained(0, keys)
        index.add(number % 3, keys)
    index.check()
    assert sorted(index.stretches(branches[301])) == [
        Stretch(0, 0, 60),
        Stretch(1, 0, 62),
        Stretch(2, 0, 60),
    ]
    for number, keys in enumerate(branches):
        index.remove(number % 3, keys)
    assert index.stats().keys == 0
    index.check()


def test_lost_answers_and_lost_calls_change_nothing(
    redis_server: RedisServer, names: KeyNames
) -> None:
    rng = Random(8)
    edges: list[Flaky] = []

    async def flaky() -> Redis:
        edges.append(Flaky(await connect(RedisSettings(redis_server.url)), rng))
        edges[0].quiet = 3
        return edges[0]

    reference = ReferenceIndex()
    with RedisIndex(flaky, names) as index:
        for _ in range(150):
            slot, keys = rng.randrange(4), rng.sample(range(200), rng.randrange(1, 60))
            if rng.random() < 0.6:
                index.add(slot, keys)
                reference.add(slot, keys)
            else:
                index.remove(slot, keys)
                reference.remove(slot, keys)
        index.check()
        every = list(range(200))
        assert sorted(index.stretches(every)) == sorted(reference.stretches(every))
        assert edges[0].lost > 30


def test_a_value_that_cannot_be_read_is_an_error_to_who_looks_up(
    index: RedisIndex, redis_server: RedisServer, names: KeyNames
) -> None:
    redis_server.ask("HSET", names.bucket(7), (7).to_bytes(8, "little"), b"what")
    with pytest.raises(ValueError, match="begins with 77686174"):
        index.stretches([7])
    with pytest.raises(CommandRefusedError, match="BADSEGMENT"):
        index.add(1, [7])
    with pytest.raises(BrokenInvariantError):
        index.check()
