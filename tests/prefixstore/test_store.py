"""The store of texts' beginnings."""

from collections.abc import Sequence
from itertools import takewhile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.examples import examples
from warmpath.prefixstore.store import ENTRY_BYTES, Entry, PrefixStore, _bytes


class ReferenceStore:
    """A dict from whole beginnings of texts to their tokens, without eviction."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[bytes, ...], bytes] = {}

    def found(self, *slices: bytes) -> list[bytes]:
        ends = (self._tokens.get(slices[:end]) for end in range(1, len(slices) + 1))
        return list(takewhile(lambda one: one is not None, ends))

    def put(self, *slices: bytes) -> None:
        for end in range(1, len(slices) + 1):
            self._tokens.setdefault(slices[:end], b"".join(slices[:end])[-4:])


def of(entries: int) -> PrefixStore:
    return PrefixStore(entries * (ENTRY_BYTES + 8), 7)


@pytest.fixture
def store() -> PrefixStore:
    return of(1000)


def check(store: PrefixStore) -> None:
    """Assert that a store's bytes add up, and are within its bound."""
    kept, total = len(store._entries), sum(map(_bytes, store._entries.values()))
    assert (kept, total) == (store.stats.entries, store.stats.bytes)
    assert total <= store._max_bytes


def put(store: PrefixStore, *slices: bytes) -> None:
    store.put(slices, [Entry(b"".join(slices[: end + 1])[-4:], 0) for end in range(len(slices))])


def found(store: PrefixStore, *slices: bytes) -> list[bytes]:
    return [entry.tokens for entry in store.find(slices)]


def test_what_was_put_is_found_as_deep_as_it_agrees(store: PrefixStore) -> None:
    put(store, b"a", b"b", b"c")
    assert found(store, b"a", b"b", b"c", b"d") == [b"a", b"ab", b"abc"]
    assert found(store, b"a", b"b", b"x", b"c") == [b"a", b"ab"]
    assert found(store, b"b", b"c") == []
    assert found(store) == []


def test_a_slice_counts_only_after_everything_before_it(store: PrefixStore) -> None:
    put(store, b"a", b"same")
    put(store, b"b", b"same")
    store.put([b"a", b"same"], [Entry(b"lost", 0), Entry(b"lost", 0)])
    assert found(store, b"a", b"same") == [b"a", b"same"]
    assert found(store, b"b", b"same") == [b"b", b"same"]


def test_slices_are_not_confused_with_their_sum(store: PrefixStore) -> None:
    put(store, b"ab", b"c")
    assert found(store, b"a", b"bc") == []


def test_the_empty_end_of_a_text_is_no_beginning_of_a_longer_one(store: PrefixStore) -> None:
    put(store, b"a", b"")
    assert found(store, b"a", b"") == [b"a", b"a"]
    assert found(store, b"a", b"b") == [b"a"]


def test_hits_and_misses_are_counted_in_bytes_of_text(store: PrefixStore) -> None:
    put(store, b"aa", b"bbb")
    store.find([b"aa", b"bbb", b"cccc"])
    assert (store.stats.hit_bytes, store.stats.missed_bytes) == (5, 4)


def test_keys_are_kept_with_their_entries(store: PrefixStore) -> None:
    put(store, b"a", b"b")
    store.keep_keys(store.find([b"a", b"b"]), "mine", [b"1" * 8, b"2" * 16])
    check(store)
    assert [(one.label, len(one.keys)) for one in store.find([b"a", b"b"])] == [
        ("mine", 8),
        ("mine", 16),
    ]
    store.keep_keys(store.find([b"a"]), "other", [b""])
    check(store)
    assert [one.label for one in store.find([b"a", b"b"])] == ["other", "mine"]


SLICES = st.lists(st.sampled_from([b"a", b"b", b"ab", b""]), min_size=1, max_size=5)


class ForgetsButNeverLies(RuleBasedStateMachine):
    """A small store beside the reference: what it finds is a beginning of the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.truth = ReferenceStore()

    @initialize(entries=st.integers(1, 12))
    def begin(self, entries: int) -> None:
        self.store = of(entries)
        self.last: Sequence[Entry] = ()

    @rule(slices=SLICES)
    def put(self, slices: list[bytes]) -> None:
        put(self.store, *slices)
        self.truth.put(*slices)

    @rule(slices=SLICES)
    def find(self, slices: list[bytes]) -> None:
        self.last = self.store.find(slices)
        truth = self.truth.found(*slices)
        assert [one.tokens for one in self.last] == truth[: len(self.last)]

    @rule(label=st.sampled_from("xy"), size=st.integers(0, 20))
    def keep_keys_of_what_was_found_maybe_long_ago(self, label: str, size: int) -> None:
        self.store.keep_keys(self.last, label, [bytes(size)] * len(self.last))

    @invariant()
    def bounded(self) -> None:
        check(self.store)


TestForgetsButNeverLies = ForgetsButNeverLies.TestCase
TestForgetsButNeverLies.settings = settings(max_examples=examples(150), deadline=None)


def test_the_least_recently_used_text_goes_first_its_end_before_its_beginning() -> None:
    store = of(4)
    put(store, b"aa", b"bb")
    put(store, b"cc", b"dd")
    store.find([b"aa", b"bb"])
    put(store, b"ee")
    assert found(store, b"cc", b"dd") == [b"cc"]
    assert len(found(store, b"aa", b"bb")) == 2
    assert store.stats.evictions == 1


def test_a_beginning_that_many_texts_share_outlives_them() -> None:
    store = of(6)
    for number in range(50):
        slices = [b"aa", b"bb", str(number).encode()]
        assert len(store.find(slices)) == (2 if number else 0)
        put(store, *slices)
        check(store)
