"""What a rank takes from batches: the same from decoded ones and from bytes, and of its own rank only."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest
from tests.indexer.memory_index import MemoryIndex
from tests.indexer.sides import FORMS, Side, stored
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Batch, Cleared, Removed, Stored
from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.trust import Level

TOKENS = st.lists(st.integers(0, 2), min_size=2, max_size=8).map(tuple)
STEPS = st.one_of(
    st.tuples(st.just("store"), TOKENS, st.sampled_from(["", "a"]), st.sampled_from(["", "s"])),
    st.tuples(st.just("report"), TOKENS),
    st.tuples(st.sampled_from(["offload", "evict"]), st.integers(0, 7)),
    st.tuples(st.sampled_from(["drop_offloaded", "clear"])),
)


def state_of(rank: RankIngest) -> object:
    held = {spot: keys for spot, keys in rank.state.held().items() if keys}
    return held, rank.layout, rank.state.counts, rank.blocks_in_use(), rank.trust, rank.sequence


@pytest.mark.parametrize("form", FORMS)
@given(steps=st.lists(STEPS, max_size=30), has_digests=st.booleans())
@settings(max_examples=examples(300))
def test_a_batch_counts_alike_in_bytes_and_decoded(
    form: str, steps: list[tuple[str, object]], *, has_digests: bool
) -> None:
    engine = EngineModel(capacity=4, has_digests=has_digests)
    said, told = Side(form).rank("p"), Side(form).rank("p")
    for name, *args in steps:
        published = getattr(engine, name)(*args)
        if published is not None:
            sequence, payload = published
            said.live_many([("", sequence, payload)])
            told.decoded(vllm.decode(payload))
            check(told)
            assert state_of(told) == state_of(said)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_known_to_be_missing_degrades_the_rank_until_a_clear(form: str) -> None:
    rank = Side(form).rank("p")
    rank.decoded(Batch(0.0, (Stored.of([1, 2], range(8), block_size=4),)))
    assert rank.trust.level is Level.EXACT
    rank.missed("the queue was full")
    assert (rank.trust.level, rank.trust.reason) == (Level.DEGRADED, "the queue was full")
    rank.decoded(Batch(0.0, (Removed.of([2]),)))
    assert rank.trust.level is Level.DEGRADED
    rank.decoded(Batch(0.0, (Cleared(),)))
    assert (rank.trust.level, rank.blocks()) == (Level.EXACT, {})
    check(rank)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_decoded", [False, True])
def test_a_batch_has_no_number_for_readers_in_other_threads_before_its_blocks_are_there(
    form: str, monkeypatch: pytest.MonkeyPatch, *, is_decoded: bool
) -> None:
    engine = EngineModel(capacity=8)
    rank = Side(form).rank("p")
    seen: list[int | None] = []

    def noted(apply: Callable[..., Any]) -> Callable[..., Any]:
        def applying(*args: object, **more: object) -> Any:
            seen.append(rank.sequence)
            return apply(*args, **more)

        return applying

    for name in ("apply", "apply_scanned"):
        monkeypatch.setattr(rank.state, name, noted(getattr(rank.state, name)))
    for number, prompt in enumerate([(1, 2), (3, 4)]):
        sequence, payload = engine.store(prompt, "", "")
        seen.clear()
        if is_decoded:
            rank.decoded(vllm.decode(payload))
        else:
            rank.live_many([("", sequence, payload)])
        assert seen
        assert number not in seen
        assert rank.sequence == number


# A slower tier may have longer blocks than the cache: parts of them are shown, and never exactly

CHUNK = "blocks of 8 tokens whole or not at all"


def with_chunk(form: str) -> Side:
    side = Side(form)
    side.send("p", stored([1, 2], range(8), None, 4))
    assert side.rank("p").trust.level is Level.EXACT
    side.send("p", stored([20], range(8), None, 8, medium="CPU"))
    return side


@pytest.mark.parametrize("form", FORMS)
def test_a_chunk_of_a_slower_tier_degrades_a_rank_until_its_engine_restarts(form: str) -> None:
    side = with_chunk(form)
    rank = side.rank("p")
    assert rank.trust.level is Level.DEGRADED
    assert CHUNK in rank.trust.reason
    side.sequence["p", 0] = 0
    side.send("p", stored([7], range(4), None, 4))
    assert (rank.trust.level, rank.counts()["restarts"]) == (Level.EXACT, 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_process_that_goes_on_from_saved_state_knows_of_the_chunk(form: str) -> None:
    saved = with_chunk(form).rank("p").save()
    rank = Side(form).restore("p", saved)
    assert CHUNK in saved.limit
    assert rank.trust.level is not Level.EXACT


@pytest.mark.parametrize("form", FORMS)
def test_a_slower_tier_with_blocks_as_long_as_the_caches_own_stays_exact(form: str) -> None:
    side = Side(form)
    side.send("p", stored([1, 2], range(8), None, 4))
    side.send("p", stored([1, 2], range(8), None, 4, medium="CPU"))
    assert side.rank("p").trust.level is Level.EXACT


# Batches of another rank are no truth about the one that they are followed as

ENGINE = Engine("p", "m", "vllm", "tcp://engine:5557", ranks=2, first_rank=4)


def batch(*rank: int | None) -> bytes:
    """Return a batch without events; without a rank it has two elements."""
    return msgspec.msgpack.encode([1.0, [], *rank])


def followed() -> list[RankIngest]:
    ingest = new_ingest(MemoryIndex, stale_after=1e9)
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
