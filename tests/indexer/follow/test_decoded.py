"""Batches that come decoded change a rank exactly as the same batches in an engine's bytes do."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.indexer.sides import FORMS, Side
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Batch, Cleared, Removed, Stored
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
