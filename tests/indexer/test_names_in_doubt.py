"""A rank in doubt whose names mean several contents, or whose contents have several names.

A block that is used proves the content before it; of that content only a name that is its sole one in
the place is proven with it.
"""

import msgspec
import pytest

from tests.indexer.consistent import check
from tests.indexer.sides import FORMS, Side, removed, stored
from warmpath.indexer.follow.stream_source import SavedRank
from warmpath.indexer.trust import Level

SIZE = 2


@pytest.fixture(params=["compiled", "pure"])
def side(request: pytest.FixtureRequest) -> Side:
    assert request.param in FORMS
    return Side(request.param)


def turn_over(side: Side, blocks: int) -> None:
    """Store enough other blocks that those still in doubt are dropped."""
    side.rank("p").learn_capacity(blocks)
    # Each removal of a known block asks for one more store.
    names = [700 + at for at in range(2 * blocks)]
    tokens = [9 + at for at in range(SIZE * 2 * blocks)]
    side.send("p", stored(names, tokens, None, SIZE), removed(names))
    assert side.rank("p").trust.level is Level.EXACT
    check(side.ingest)


def shown(side: Side, *tokens: int) -> int:
    return side.blocks(list(tokens), SIZE).get("p", 0)


def test_a_block_that_is_used_proves_the_content_before_it_by_whatever_name(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, SIZE))
    side.send("p", stored([11], [1, 1], None, SIZE), removed([1]))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, SIZE))
    turn_over(side, 5)
    assert shown(side, 1, 1, 2, 2, 3, 3) == 3


def test_a_name_that_means_other_content_now_is_not_proven_by_what_hung_on_it(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, SIZE))
    side.send("p", removed([1]), stored([1], [5, 5], None, SIZE))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, SIZE))
    turn_over(side, 5)
    assert shown(side, 5, 5) == 0


def test_of_several_names_for_what_is_before_none_is_proven(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, SIZE), stored([11], [1, 1], None, SIZE))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, SIZE))
    turn_over(side, 5)
    assert shown(side, 1, 1) == 0
    side.send("p", removed([11]), removed([1]))
    assert side.rank("p").state.counts.unknown_removals == 2


def test_a_name_in_a_slower_tier_hides_none_of_the_fastest(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, SIZE))
    side.send("p", stored([11], [1, 1], None, SIZE, medium="CPU"))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, SIZE), removed([11], "CPU"))
    turn_over(side, 5)
    assert shown(side, 1, 1, 2, 2, 3, 3) == 3


def test_a_parent_that_was_gone_for_a_while_is_proven_when_it_is_back(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, SIZE))
    side.send("p", stored([12], [2, 2], 1, SIZE), removed([1]), removed([12]))
    go_on_in_another_process(side)
    side.send("p", stored([1], [1, 1], None, SIZE))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, SIZE))
    turn_over(side, 5)
    assert shown(side, 1, 1, 2, 2, 3, 3) == 3


def go_on_in_another_process(side: Side) -> None:
    saved = msgspec.msgpack.encode(side.rank("p").save())
    sequence = side.sequence["p", 0]
    side.ingest.remove("p", 0)
    side.restore("p", msgspec.msgpack.decode(saved, type=SavedRank))
    side.sequence["p", 0] = sequence
