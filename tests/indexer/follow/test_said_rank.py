"""Batches say whose they are: those of another rank are no truth about the one they are followed as."""

import msgspec

from tests.indexer.consistent import check
from tests.indexer.followed import new_ingest
from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.trust import Level

ENGINE = Engine("p", "m", "vllm", "tcp://engine:5557", ranks=2, first_rank=4)


def batch(*rank: int | None) -> bytes:
    """Return a batch without events; without a rank it has two elements."""
    return msgspec.msgpack.encode([1.0, [], *rank])


def followed() -> list[RankIngest]:
    ingest = new_ingest(MemoryIndex, stale_after=1000000000.0)
    ranks = [ingest.add(source) for source in ENGINE.sources()]
    for rank in ranks:
        rank.connected()
    return ranks


def take(rank: RankIngest, number: int, payload: bytes) -> None:
    rank.live_many([("", number, payload)])
    check(rank)


def test_batches_of_another_rank_degrade_the_one_that_they_are_followed_as_and_no_other() -> None:
    first, second = followed()
    take(first, 0, batch(4))
    take(second, 0, batch(4))
    assert first.trust.level is Level.EXACT
    assert second.trust.level is Level.DEGRADED
    assert "those of the engine's rank 4 and are followed as rank 5" in second.trust.reason


def test_a_connection_to_the_right_rank_ends_the_doubt() -> None:
    _, rank = followed()
    take(rank, 0, batch(4))
    rank.disconnected()
    rank.connected()
    take(rank, 1, batch(5))
    assert "followed as" not in rank.trust.reason


def test_batches_that_do_not_say_their_rank_are_believed() -> None:
    for unsaid in (batch(), batch(None)):
        _, rank = followed()
        take(rank, 0, unsaid)
        assert rank.trust.level is Level.EXACT


def test_a_pods_only_rank_may_have_any_number() -> None:
    (source,) = Engine("p", "m", "vllm", "tcp://engine:5557", first_rank=4).sources()
    assert source.said_rank is None
