"""What the compiled form of a rank must do as the pure one does, with names of several contents too."""

from collections.abc import Iterator

import pytest

from tests.indexer.consistent import check
from tests.indexer.sides import FORMS, Event, Side, removed, stored
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.trust import Level

B = 2


@pytest.fixture(params=FORMS)
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    side = Side(request.param)
    yield side
    check(side.ingest)


def block(n: int) -> list[int]:
    return [n, n + 1]


PROMPT = block(10) + block(20) + block(30)


def test_proving_ends_at_a_block_that_was_freed_and_touches_no_other_pod(side: Side) -> None:
    prompt = block(100) + block(200)
    for pod in "pqr":
        side.rank(pod)
    for pod in "pq":
        side.send(
            pod,
            stored([11], block(700), None, B),
            stored([12], block(800), None, B),
            stored([1, 2], prompt, None, B),
        )
    side.send("r", stored([9, 10], block(900) + block(910), None, B))
    side.send("p", stored([3, 4], block(300) + block(400), None, B))
    for pod in "pq":
        side.send(pod, removed([12]))
    side.send("p", removed([3]))  # the parent goes, its child stays
    side.doubt("p")
    side.send("p", stored([5], block(500), 4, B))
    side.send("p", removed([11]), removed([2]))
    assert side.blocks(prompt, B) == {"p": 1, "q": 2}
    for pod in "qr":
        side.send(pod, stored([50], block(5000), None, B))
    assert side.blocks(prompt, B) == {"p": 1, "q": 2}


def turn_over(side: Side, capacity: int) -> None:
    """Store twice as many blocks as the cache holds, which evict each other."""
    rank = side.rank("p")
    rank.learn_capacity(capacity)
    # Each removal of a known block asks for one more store.
    for n in range(1000, 1000 + 2 * capacity + 1):
        side.send("p", stored([n], block(n), None, B), removed([n]))
    assert rank.trust.level is Level.EXACT


def test_a_parent_that_was_freed_and_stored_anew_is_proven_by_its_child(side: Side) -> None:
    side.send("p", stored([7], block(70), None, B))
    side.send("p", stored([1, 2], PROMPT[: 2 * B], None, B))
    side.send("p", removed([1]))
    side.send("p", stored([1], PROMPT[:B], None, B))
    side.lose("p")
    side.send("p", stored([3], PROMPT[2 * B :], 2, B))
    turn_over(side, 8)
    assert side.blocks(PROMPT, B) == {"p": 3}
    assert side.blocks(block(70), B) == {}


def test_a_store_proves_its_parent_where_part_of_it_is_not_plain(side: Side) -> None:
    side.send("p", stored([1], PROMPT[:B], None, B))
    side.send("p", stored([8, 9], block(80) + block(90), None, B))
    side.lose("p")
    side.send("p", stored([9], block(90), 8, B))
    side.send("p", stored([2, 9], PROMPT[B:], 1, B))
    turn_over(side, 8)
    assert side.blocks(PROMPT, B)["p"] >= 2


def test_a_name_stays_with_its_first_content_and_what_follows_it_with_its_own(side: Side) -> None:
    side.send("p", stored([7, 8], block(70) + block(80), None, B))
    side.send("p", stored([1, 7, 3, 8, 5], PROMPT + PROMPT[: 2 * B], None, B))
    check(side.ingest)
    assert side.blocks(block(70) + block(80), B) == {"p": 2}
    assert side.held(PROMPT + PROMPT[: 2 * B], B)["p", 0, "gpu", 0] == {0, 2, 4}


A = 90194313216
TWICE: dict[str, list[Event]] = {
    "a removal from a tier that does not hold it": [stored([A, A + 1], PROMPT[: 2 * B], None, B), removed([A, A], "CPU"), removed([A, A + 1])],
    "a store of a known block": [
        stored([A], PROMPT[:B], None, B),
        stored([7, A, A], block(50) * 3, None, B),
        removed([A]),
        removed([A]),
        removed([A]),
        removed([7]),
    ],
    "a removal behind an unknown name": [stored([A], PROMPT[:B], None, B), removed([5, A, A])],
    "a removal and a store of one batch": [
        stored([A], PROMPT[:B], None, B),
        removed([A, A]) | {"medium": None},
        stored([A, A], block(60) * 2, None, B, extra_keys=[["x"], None]),
        removed([A, A]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("events", TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("together", [False, True])
def test_a_name_twice_in_one_event_counts_as_often_as_it_is_named(
    side: Side, events: list[Event], *, together: bool
) -> None:
    for batch in [events] if together else [[event] for event in events]:
        side.send("p", *batch)
        check(side.ingest)
    assert side.blocks(PROMPT, B) == {}
    assert not any(side.rank("p").state.held().values())


def orphaned(side: Side) -> None:
    """Let a child be stored whose parent's batch was lost."""
    side.send("p", stored([1, 2], block(90) + block(91), None, B))
    side.lose("p")
    side.send("p", stored([102], block(30), 101, B))
    assert side.rank("p").counts()["parentless"] == 1


def test_a_child_is_adopted_when_its_parent_comes_in_a_plain_batch(side: Side) -> None:
    orphaned(side)
    side.send("p", stored([100, 101], PROMPT[: 2 * B], None, B))
    assert side.blocks(PROMPT, B) == {"p": 3}
    assert side.rank("p").counts()["adopted"] == 1


def test_a_rank_whose_orphans_were_adopted_heals(side: Side) -> None:
    orphaned(side)
    side.send("p", stored([100, 101], PROMPT[: 2 * B], None, B))
    turn_over(side, 8)
    assert side.blocks(PROMPT, B) == {"p": 3}


def test_many_children_wait_for_many_parents(side: Side) -> None:
    orphaned(side)
    count = 300
    for n in range(count):
        side.send("p", stored([10_000 + n], block(2 * n), 20_000 + n, B))
    for n in range(count):
        if n % 3 == 0:
            side.send("p", removed([10_000 + n]))
        else:
            side.send("p", stored([20_000 + n], block(7), None, B))
    adopted = count - count // 3
    assert side.rank("p").counts()["adopted"] == adopted


def test_a_name_that_is_the_number_of_a_key_is_no_key(side: Side) -> None:
    root = Keyspace("m", B).root()
    keys = chain(root, pack_tokens(PROMPT), B)
    side.send("p", stored([7, 8], block(70) + block(80), None, B))
    side.send("p", stored([1, 2, 3], PROMPT, None, B))
    side.send("p", stored([keys[1]], block(90), None, B, cache_salt="x", extra_keys=[["x"]]))
    side.send("p", stored([keys[1]], block(90), None, B, extra_keys=[["x"]]))
    side.send("p", removed([3]))
    side.send("p", removed([2], "CPU"), removed([2]))
    check(side.ingest)
    assert side.blocks(PROMPT, B) == {"p": 1}


def test_another_engines_name_of_an_odd_block_does_not_hide_the_ranks_own(side: Side) -> None:
    """Both engines give the name 5, to other contents."""
    side.send("a", stored([5], PROMPT[:B], None, B))
    side.send("b", stored([6], PROMPT[:B], None, B), stored([6], PROMPT[:B], None, B))
    side.send("b", stored([5], block(90), None, B))
    check(side.ingest)
    side.send("b", removed([5]))
    check(side.ingest)
    assert side.blocks(block(90), B) == {}
    assert side.blocks(PROMPT, B) == {"a": 1, "b": 1}


def test_a_block_held_by_a_new_name_hides_no_other_block_in_the_same_batch(side: Side) -> None:
    """Both engines give the name 1, to other contents."""
    side.send("a", stored([1], PROMPT[:B], None, B))
    side.send("b", stored([1], block(90), None, B))
    side.send("b", stored([5], PROMPT[:B], None, B), removed([1], "CPU"), removed([1]))
    check(side.ingest)
    assert side.blocks(block(90), B) == {}
    assert side.blocks(PROMPT, B) == {"a": 1, "b": 1}
    side.send("b", stored([1], block(80), None, B), stored([5], PROMPT[:B], None, B))
    lora = {"lora_name": "x", "lora_id": 1, "extra_keys": [["x"]]}
    side.send("b", stored([6], PROMPT[:B], None, B), stored([1], block(60), None, B, **lora))


def test_the_name_0_is_followed_as_others_are(side: Side) -> None:
    side.send("p", stored([7, 0, 8], PROMPT, None, B))
    side.send("p", stored([9], block(90), 0, B))
    assert side.blocks(PROMPT[: 2 * B] + block(90), B) == {"p": 3}
    side.send("p", removed([0]))
    check(side.ingest)
    assert side.held(PROMPT, B) == {("p", 0, "gpu", 0): {0, 2}}


def test_a_name_twice_in_one_event_is_not_stored_again(side: Side) -> None:
    rank = side.rank("p", 0, "sglang")
    event = stored([7, 8], block(70) + block(80), None, B)
    del event["lora_name"]
    side.send("p", event)
    side.send("p", event | {"block_hashes": [5, 5], "token_ids": PROMPT[: 2 * B]})
    assert rank.trust.level is Level.EXACT
    side.send("p", event | {"block_hashes": [5, 6], "token_ids": PROMPT[: 2 * B]})
    assert rank.trust.level is Level.DEGRADED


# In doubt. A block that is used proves the content before it; of that content only a name that is its sole
# one in the place is proven with it.


def shown(side: Side, *tokens: int) -> int:
    return side.blocks(list(tokens), B).get("p", 0)


def test_a_block_that_is_used_proves_the_content_before_it_by_whatever_name(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, B))
    side.send("p", stored([11], [1, 1], None, B), removed([1]))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, B))
    turn_over(side, 5)
    assert shown(side, 1, 1, 2, 2, 3, 3) == 3


def test_a_name_that_means_other_content_now_is_not_proven_by_what_hung_on_it(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, B))
    side.send("p", removed([1]), stored([1], [5, 5], None, B))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, B))
    turn_over(side, 5)
    assert shown(side, 5, 5) == 0


def test_of_several_names_for_what_is_before_none_is_proven(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, B), stored([11], [1, 1], None, B))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, B))
    turn_over(side, 5)
    assert shown(side, 1, 1) == 0
    side.send("p", removed([11]), removed([1]))
    assert side.rank("p").state.counts.unknown_removals == 2


def test_a_name_in_a_slower_tier_hides_none_of_the_fastest(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, B))
    side.send("p", stored([11], [1, 1], None, B, medium="CPU"))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, B), removed([11], "CPU"))
    turn_over(side, 5)
    assert shown(side, 1, 1, 2, 2, 3, 3) == 3


def test_a_parent_that_was_gone_for_a_while_is_proven_when_it_is_back(side: Side) -> None:
    side.send("p", stored([1, 2], [1, 1, 2, 2], None, B))
    side.send("p", stored([12], [2, 2], 1, B), removed([1]), removed([12]))
    side.restart("p")
    side.send("p", stored([1], [1, 1], None, B))
    side.doubt("p")
    side.send("p", stored([3], [3, 3], 2, B))
    turn_over(side, 5)
    assert shown(side, 1, 1, 2, 2, 3, 3) == 3
