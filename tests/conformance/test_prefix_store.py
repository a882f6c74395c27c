"""One suite for every prefix store."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixstore.lru import ENTRY_BYTES, LruStore
from prefixstore.reference import ReferenceStore
from prefixstore.store import PrefixStore

STORES: dict[str, Callable[[], PrefixStore]] = {
    "reference": ReferenceStore,
    "lru": lambda: LruStore(1 << 20),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> PrefixStore:
    return STORES[request.param]()


def test_what_was_put_is_found_as_deep_as_it_agrees(store: PrefixStore) -> None:
    store.put("m", ["a", "b", "c"], [b"1", b"2", b"3"])
    assert store.find("m", ["a", "b", "c", "d"]) == [b"1", b"2", b"3"]
    assert store.find("m", ["a", "b", "x", "c"]) == [b"1", b"2"]
    assert store.find("m", ["b", "c"]) == []
    assert store.find("m", []) == []


def test_a_piece_counts_only_after_everything_before_it(store: PrefixStore) -> None:
    store.put("m", ["a", "same"], [b"1", b"2"])
    store.put("m", ["b", "same"], [b"3", b"4"])
    assert store.find("m", ["a", "same"]) == [b"1", b"2"]
    assert store.find("m", ["b", "same"]) == [b"3", b"4"]


def test_pieces_are_not_confused_with_their_sum(store: PrefixStore) -> None:
    store.put("m", ["ab", "c"], [b"1", b"2"])
    assert store.find("m", ["a", "bc"]) == []


def test_two_tokenizers_never_share(store: PrefixStore) -> None:
    store.put("m", ["a"], [b"1"])
    assert store.find("n", ["a"]) == []


def test_hits_and_misses_are_counted(store: PrefixStore) -> None:
    store.put("m", ["a", "b"], [b"1", b"2"])
    store.find("m", ["a", "b", "c"])
    assert (store.stats.hit_pieces, store.stats.missed_pieces) == (2, 1)


PIECES = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5)


class LruForgetsButNeverLies(RuleBasedStateMachine):
    """A small LRU store beside the reference: what it finds is a beginning of the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.lru = LruStore(6 * (ENTRY_BYTES + 4))
        self.truth = ReferenceStore()

    @rule(space=st.sampled_from("mn"), pieces=PIECES)
    def put(self, space: str, pieces: list[str]) -> None:
        tokens = ["".join((space, *pieces[: end + 1])).encode()[-4:] for end in range(len(pieces))]
        self.lru.put(space, pieces, tokens)
        self.truth.put(space, pieces, tokens)

    @rule(space=st.sampled_from("mn"), pieces=PIECES)
    def find(self, space: str, pieces: list[str]) -> None:
        found = self.lru.find(space, pieces)
        assert found == self.truth.find(space, pieces)[: len(found)]

    @invariant()
    def bounded(self) -> None:
        self.lru.check()


LruForgetsButNeverLies.TestCase.settings = settings(max_examples=150, deadline=None)
TestLruForgetsButNeverLies = LruForgetsButNeverLies.TestCase


def test_the_least_recently_used_beginning_goes_first_its_tail_before_its_head() -> None:
    store = LruStore(4 * (ENTRY_BYTES + 1))
    store.put("m", ["a", "b"], [b"1", b"2"])
    store.put("m", ["c", "d"], [b"3", b"4"])
    store.find("m", ["a", "b"])
    store.put("m", ["e"], [b"5"])
    assert store.find("m", ["c", "d"]) == [b"3"]
    assert store.find("m", ["a", "b"]) == [b"1", b"2"]
    assert store.stats.evictions == 1
