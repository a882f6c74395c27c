"""One suite for every prefix store."""

import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from xxhash import xxh3_128_digest

from tests.examples import examples
from warmpath.prefixstore import store as stores
from warmpath.prefixstore.store import (
    ENTRY_BYTES,
    LEAF_BYTES,
    NODE_BYTES,
    Entry,
    LruStore,
    PrefixStore,
    TrieStore,
)


class ReferenceStore(PrefixStore):
    """The reference: a dict from whole beginnings of texts to entries, without eviction."""

    def __init__(self) -> None:
        super().__init__(0)
        self._entries: dict[tuple[bytes, ...], Entry] = {}

    def find(self, slices: Sequence[bytes]) -> list[Entry]:
        found: list[Entry] = []
        for end in range(1, len(slices) + 1):
            entry = self._entries.get(tuple(slices[:end]))
            if entry is None:
                break
            found.append(entry)
        self.stats.looked_up(slices, len(found))
        return found

    def put(self, slices: Sequence[bytes], entries: Sequence[Entry]) -> None:
        for end, entry in enumerate(entries, 1):
            kept = self._entries.setdefault(tuple(slices[:end]), entry)
            kept.is_kept = True
        self.stats.entries = len(self._entries)

    def _make_room(self) -> None:
        """Evict nothing."""


SEED = 0x9E3779B97F4A7C15
DIGEST_BYTES = 16

STORES: dict[str, Callable[[int], PrefixStore]] = {
    "reference": lambda _: ReferenceStore(),
    "lru": lambda entries: LruStore(entries * (ENTRY_BYTES + 8), SEED),
    "trie": lambda entries: TrieStore(entries * (NODE_BYTES + 10) + 3 * (LEAF_BYTES + 32)),
}
BOUNDED = sorted(STORES.keys() - {"reference"})


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> PrefixStore:
    return STORES[request.param](1000)


def check(store: PrefixStore) -> None:
    """Assert that a store's bytes and paths add up, and are within its bound."""
    if isinstance(store, ReferenceStore):
        return
    assert isinstance(store, LruStore | TrieStore)
    if isinstance(store, LruStore):
        kept, total = len(store._entries), sum(map(stores._bytes_of, store._entries.values()))
    else:
        kept, total = len(store._trie), sum(map(stores._node_bytes, store._trie.values()))
        total += sum(map(stores._leaf_bytes, store._leaves))
        paths = store._trie.keys()
        assert {path for path in paths if not store._trie.has_subtrie(path)} == store._leaves.keys()
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


XXH3_SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db")


def prepared(low: int) -> bytes:
    """Return a slice that has one XXH3 digest for any `low`, unless the digest has a seed.

    In the first lane of two stripes the high half is that of XXH3's own secret, so the lanes' products
    are 0, and only their sum counts.
    """
    made = bytearray(400)
    for stripe, half in ((1, low), (2, (1 << 31) - low)):
        (secret,) = struct.unpack_from("<Q", XXH3_SECRET, 8 * stripe)
        struct.pack_into("<Q", made, 64 * stripe - DIGEST_BYTES, secret >> 32 << 32 | half)
    return bytes(made)


def test_texts_that_were_prepared_to_have_one_digest_are_two(store: PrefixStore) -> None:
    before = bytes(DIGEST_BYTES)
    assert xxh3_128_digest(before + prepared(5)) == xxh3_128_digest(before + prepared(77))
    put(store, b"a", prepared(5))
    assert found(store, b"a", prepared(77)) == [b"a"]


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

    name: str

    def __init__(self) -> None:
        super().__init__()
        self.truth = ReferenceStore()

    @initialize(entries=st.integers(1, 12))
    def begin(self, entries: int) -> None:
        self.store = STORES[self.name](entries)
        self.last: Sequence[Entry] = ()

    @rule(slices=SLICES)
    def put(self, slices: list[bytes]) -> None:
        put(self.store, *slices)
        put(self.truth, *slices)

    @rule(slices=SLICES)
    def find(self, slices: list[bytes]) -> None:
        self.last = self.store.find(slices)
        truth = self.truth.find(slices)
        assert [one.tokens for one in self.last] == [one.tokens for one in truth][: len(self.last)]

    @rule(label=st.sampled_from("xy"), size=st.integers(0, 20))
    def keep_keys_of_what_was_found_maybe_long_ago(self, label: str, size: int) -> None:
        self.store.keep_keys(self.last, label, [bytes(size)] * len(self.last))

    @invariant()
    def bounded(self) -> None:
        check(self.store)


for _name in BOUNDED:
    _machine = type(f"{_name.title()}ForgetsButNeverLies", (ForgetsButNeverLies,), {"name": _name})
    _machine.TestCase.settings = settings(max_examples=examples(150), deadline=None)
    globals()[f"Test{_machine.__name__}"] = _machine.TestCase


@pytest.mark.parametrize("name", BOUNDED)
def test_the_least_recently_used_text_goes_first_its_end_before_its_beginning(name: str) -> None:
    store = STORES[name](4)
    put(store, b"aa", b"bb")
    put(store, b"cc", b"dd")
    store.find([b"aa", b"bb"])
    put(store, b"ee")
    assert found(store, b"cc", b"dd") == [b"cc"]
    assert len(found(store, b"aa", b"bb")) == 2
    assert store.stats.evictions == 1


@pytest.mark.parametrize("name", BOUNDED)
def test_a_beginning_that_many_texts_share_outlives_them(name: str) -> None:
    store = STORES[name](6)
    for number in range(50):
        slices = [b"aa", b"bb", str(number).encode()]
        assert len(store.find(slices)) == (2 if number else 0)
        put(store, *slices)
        check(store)
