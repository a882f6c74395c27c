"""Why an engine found something else than was predicted, and when it may have looked: each cause is named only where it is one."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.indexer.engines.event import Cleared, EngineHash, Removed, Stored, Tier
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.trust import Level, Trust
from warmpath.lab.verify.cause import BlockNames, Case, cause
from warmpath.lab.verify.stay import LATE_SECONDS, Batch, EventKeys, Stay

KEYS = (11, 12, 13, 14)


def stay(*batches: Batch, held: int = 0, others: int = 3) -> Stay:
    return Stay(1.0, 2.0, KEYS, frozenset(KEYS[:held]), batches, 0, others)


def stored(*keys: int) -> EventKeys:
    return "stored", frozenset(keys)


def removed(*keys: int) -> EventKeys:
    return "removed", frozenset(keys)


def test_the_time_is_named_in_which_as_many_blocks_were_cached_as_the_engine_found() -> None:
    stayed = stay(Batch(1.25, 7, [stored(11, 12)]), Batch(1.5, 8, [removed(12, 99)]), held=1)
    assert stayed.account(0, 2) == (
        "3 other requests were under way; the engine looked the prompt up while 2 of its blocks were "
        "cached, from batch 7 (1.250 s) to batch 8 (1.500 s)"
    )
    assert "cached, from its arrival (1.000 s) to batch 7 (1.250 s)" in stay(
        Batch(1.25, 7, [stored(12)]), held=1
    ).account(2, 1)
    assert "cached, from batch 7 (1.250 s) to its answer (2.000 s)" in stay(
        Batch(1.25, 7, [stored(11, 12)])
    ).account(0, 2)


def test_a_step_may_evict_and_store_a_block_again_and_look_between_the_two() -> None:
    stayed = stay(Batch(1.5, 8, [removed(12, 13), stored(12, 13)]), held=4)
    assert stayed.account(4, 1).endswith(
        "while 1 of its blocks were cached, within batch 8 (1.500 s)"
    )


def test_events_of_a_step_may_come_after_its_answer_but_not_long_after() -> None:
    late = stay(Batch(3.5, 9, [stored(11)]), others=1)
    assert late.account(0, 1) == (
        "one other request was under way; the engine looked the prompt up while 1 of its blocks were "
        "cached, from batch 9 (3.500 s) on, whose events came after the answer"
    )
    later = stay(Batch(2.0 + 2 * LATE_SECONDS, 9, [stored(11)]))
    assert "not explained" in later.account(0, 1)


def test_where_no_moment_fits_it_is_said_when_each_block_was_cached() -> None:
    stayed = stay(
        Batch(1.25, 7, [stored(12, 13)]),
        Batch(1.5, 8, [removed(13)]),
        Batch(1.75, 9, [stored(11)]),
        held=0,
        others=0,
    )
    assert stayed.account(0, 4) == (
        "not explained: no other request was under way, and no event shows why; "
        "block 1 was cached from batch 9 (1.750 s) to its answer (2.000 s); "
        "block 2 was cached from batch 7 (1.250 s) to its answer (2.000 s); "
        "block 3 was cached from batch 7 (1.250 s) to batch 8 (1.500 s); block 4 was never cached"
    )


EVENT = st.one_of(
    st.tuples(st.sampled_from(["stored", "removed"]), st.frozensets(st.sampled_from(KEYS))),
    st.just(("cleared", frozenset[int]())),
)


@given(
    st.lists(st.tuples(st.floats(1.0, 4.0), st.lists(EVENT, max_size=4)), max_size=6),
    st.integers(0, 4),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_any_events_and_figures_give_a_reason(
    batches: list[tuple[float, Sequence[EventKeys]]], held: int, predicted: int, actual: int
) -> None:
    of = [Batch(t, number, said) for number, (t, said) in enumerate(sorted(batches))]
    found = stay(*of, held=held).account(predicted, actual)
    if actual == held:
        assert "from its arrival (1.000 s)" in found


EXACT = Trust(Level.EXACT, "followed from the first batch", 0.0)
DEGRADED = Trust(Level.DEGRADED, "batches 3 to 4 are lost", 0.0)


def case(
    predicted: int,
    actual: int,
    *before: EventKeys,
    lost: Sequence[EventKeys] = (),
    samples: int = 1,
    trust: Trust = EXACT,
    after_restart: bool = False,
) -> Case:
    stay = Stay(0.0, 1.0, KEYS, frozenset(KEYS[:predicted]), (), 0, 0)
    return Case(stay, samples, trust, predicted, actual, before, lost, after_restart)


CLEARED: EventKeys = ("cleared", frozenset())


def test_an_eviction_is_a_cause_only_where_it_took_a_block_of_the_prompt() -> None:
    assert "evicted by the very step" in cause(case(3, 1, removed(99), removed(12)))
    assert "not explained" in cause(case(3, 0, removed(99)))
    # It took another block of the prompt than the one that was missing.
    assert "not explained" in cause(case(3, 0, removed(13)))


@pytest.mark.parametrize("trust", [EXACT, DEGRADED])
def test_a_reset_in_the_same_step_is_the_cause_whatever_the_trust(trust: Trust) -> None:
    assert "announces a reset only with its next step" in cause(case(3, 0, CLEARED, trust=trust))
    assert "a reset" in cause(case(3, 2, CLEARED, stored(11, 12), trust=trust))
    assert "a reset" not in cause(case(3, 2, CLEARED, trust=trust))


@pytest.mark.parametrize("trust", [EXACT, DEGRADED])
def test_samples_are_the_cause_where_the_whole_prompt_was_found(trust: Trust) -> None:
    assert "3 samples of one prompt" in cause(case(1, 4, samples=3, trust=trust))
    assert "samples" not in cause(case(1, 3, samples=3, trust=trust))
    assert "samples" not in cause(case(4, 0, samples=3, trust=trust))


def test_a_store_of_the_same_step_is_a_cause_where_it_has_the_blocks() -> None:
    assert "another request of the same step" in cause(case(1, 3, stored(12, 13)))
    assert "not explained" in cause(case(1, 3, stored(13)))


def test_a_lost_batch_is_the_cause_where_it_told_of_the_difference() -> None:
    assert "lost on the way" in cause(case(3, 1, lost=[removed(12)]))
    assert "lost on the way" in cause(case(1, 2, lost=[stored(12)]))
    assert "not explained" in cause(case(3, 1, lost=[removed(99)]))
    assert "the view was degraded" in cause(case(3, 1, lost=[removed(99)], trust=DEGRADED))


def test_a_restart_that_nothing_had_shown_is_the_cause() -> None:
    assert "restarted" in cause(case(3, 0, after_restart=True, trust=DEGRADED))


def test_names_stand_for_the_keys_of_their_blocks_until_another_life_begins() -> None:
    names = BlockNames("m")
    keys = chain(Keyspace("m", 2).root(), pack_tokens((1, 2, 3, 4, 5, 6)), 2)

    def store(hashes: tuple[EngineHash, ...], parent: EngineHash | None, *tokens: int) -> Stored:
        return Stored(hashes, parent, pack_tokens(tokens), 2, Tier.GPU)

    assert names.learn([store((1, b"two"), None, 1, 2, 3, 4)]) == [stored(*keys[:2])]
    assert names.learn([store((3,), b"two", 5, 6), Removed((b"two", 77), None), Cleared()]) == [
        stored(keys[2]), removed(keys[1]), CLEARED,
    ]  # fmt: skip
    assert names.learn([Removed((3,), Tier.CPU)]) == [stored()]
    names.clear()
    assert names.learn([Removed((3,), Tier.GPU), store((4,), b"two", 7, 8)]) == [
        removed(), stored(),
    ]  # fmt: skip
