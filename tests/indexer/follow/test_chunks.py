"""A slower tier whose blocks are longer than the cache's own: parts of them are shown, and never exactly."""

import pytest

from tests.indexer.sides import FORMS, Side, stored
from warmpath.indexer.trust import Level

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
