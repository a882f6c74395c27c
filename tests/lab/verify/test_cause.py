"""Why an engine found something else than was predicted: each cause is named only where it is one."""

from collections.abc import Sequence

import pytest

from warmpath.indexer.engines.event import Cleared, EngineHash, Removed, Stored, Tier
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.trust import Level, Trust
from warmpath.lab.verify.cause import BlockNames, Case, cause
from warmpath.lab.verify.stay import EventKeys, Stay

KEYS = (11, 12, 13, 14)
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


def removed(*keys: int) -> EventKeys:
    return "removed", frozenset(keys)


def stored(*keys: int) -> EventKeys:
    return "stored", frozenset(keys)


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
