"""The copy of segments says what was read, and when; against a plain model of it."""

from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.conformance.reference_index import ReferenceIndex
from tests.indexer.segment_values import encode, pack
from tests.indexer.shared.inside import check_cache
from warmpath.indexer.index.contract import Stretch
from warmpath.indexer.keys.key import pack_words
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.query.lookup import ENTRY_BYTES, SegmentCache

ROOMY = 1 << 30


def keys_of(*keys: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(keys, np.uint64)


def value_of(holders: dict[int, set[int]]) -> bytes | None:
    return encode(pack(holders)) if holders else None


def field(*words: int) -> bytes:
    return pack_words(words)


SPILLED = bytes([2, 0, 0, 0, 9, 0, 0, 0])


def chain(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


def test_a_stretch_goes_on_from_one_segment_to_the_next() -> None:
    cache = SegmentCache(ROOMY)
    prompt = chain(1, 2 * SEGMENT + 3)
    for start in range(0, len(prompt), SEGMENT):
        cache.put(
            field(prompt[start]),
            value_of({key: {9} for key in prompt[start : start + SEGMENT]}),
            start,
        )
    assert cache.match(keys_of(*prompt)).stretches == [Stretch(9, 0, len(prompt))]
    assert cache.match(keys_of(*prompt)).read_at == 0


def test_what_was_never_read_is_missing_and_what_is_empty_is_not() -> None:
    cache = SegmentCache(ROOMY)
    prompt = chain(1, SEGMENT + 5)
    assert cache.match(keys_of(*prompt)).missing == len(prompt)
    assert cache.match(keys_of(*prompt)).read_at == inf
    cache.put(field(1), None, 3.0)
    copied = cache.match(keys_of(*prompt))
    assert (copied.stretches, copied.read_at, copied.missing) == ([], 3.0, 5)
    assert cache.lacking(keys_of(*prompt), since=3.0) == [SEGMENT]
    assert cache.lacking(keys_of(*prompt), since=3.1) == [0, SEGMENT]


def test_only_the_leading_part_of_a_prompt_has_to_be_known_where_no_more_is_asked() -> None:
    cache = SegmentCache(ROOMY)
    prompt = keys_of(*chain(1, 3 * SEGMENT))
    cache.put(field(1), value_of({key: {7} for key in range(1, 1 + SEGMENT)}), 4.0)
    assert cache.match(prompt, leading=True).missing == SEGMENT
    cache.put(field(1 + SEGMENT), None, 5.0)
    cache.put(field(1 + 2 * SEGMENT), None, 1.0)
    assert cache.match(prompt, leading=True).read_at == 4.0
    assert cache.match(prompt).read_at == 1.0
    assert cache.match(prompt, leading=True).missing == 0


def test_of_a_spilled_segment_the_wanted_blocks_are_read_one_by_one() -> None:
    cache = SegmentCache(ROOMY)
    cache.put(field(1), SPILLED, 2.0)
    assert cache.lacking(keys_of(1, 2, 3), since=2.0) == [0]
    cache.put(field(1, 1), value_of({1: {7, 8}}), 2.0)
    cache.put(field(1, 2), value_of({2: {7}}), 3.0)
    copied = cache.match(keys_of(1, 2, 3))
    assert sorted(copied.stretches) == [Stretch(7, 0, 2), Stretch(8, 0, 1)]
    assert (copied.read_at, copied.missing) == (2.0, 1)
    cache.put(field(1, 3), None, 3.0)
    assert cache.lacking(keys_of(1, 2, 3), since=2.0) == []
    assert cache.match(keys_of(1, 2, 3)).missing == 0


def test_a_segment_that_is_packed_again_no_longer_counts_its_single_blocks() -> None:
    cache = SegmentCache(ROOMY)
    cache.put(field(1), SPILLED, 0.0)
    cache.put(field(1, 1), value_of({1: {7}}), 0.0)
    cache.put(field(1), value_of({1: {8}}), 1.0)
    assert cache.match(keys_of(1)).stretches == [Stretch(8, 0, 1)]


def test_the_least_recently_used_goes_first() -> None:
    cache = SegmentCache(3 * ENTRY_BYTES)
    for segment in (1, 2, 3):
        cache.put(field(segment), None, 0.0)
    cache.match(keys_of(1))
    cache.put(field(4), None, 0.0)
    missing = [cache.match(keys_of(segment)).missing for segment in (1, 2, 3, 4)]
    assert (missing, cache.evicted) == ([0, 1, 0, 0], 1)


def test_what_is_larger_than_the_copy_is_not_kept() -> None:
    cache = SegmentCache(ENTRY_BYTES)
    cache.put(field(1), value_of({1: {7}}), 0.0)
    assert (len(cache), cache.bytes) == (0, 0)


HOLDERS = st.dictionaries(st.integers(0, 11), st.sets(st.integers(0, 40), min_size=1), max_size=12)


@given(
    holders=HOLDERS,
    prompt=st.lists(st.integers(0, 11), unique=True, min_size=1),
    spilled=st.booleans(),
)
def test_it_says_what_an_index_with_the_same_content_says(
    *, holders: dict[int, set[int]], prompt: list[int], spilled: bool
) -> None:
    index = ReferenceIndex()
    for key, slots in holders.items():
        for slot in slots:
            index.add(slot, [key])
    cache = SegmentCache(ROOMY)
    if spilled:
        cache.put(field(prompt[0]), SPILLED, 0.0)
        for key in prompt:
            one = value_of({key: holders[key]} if key in holders else {})
            cache.put(field(prompt[0], key), one, 0.0)
    else:
        cache.put(field(prompt[0]), value_of(holders), 0.0)
    copied = cache.match(keys_of(*prompt))
    assert sorted(copied.stretches) == sorted(index.stretches(prompt))
    assert copied.missing == 0


class CacheMachine(RuleBasedStateMachine):
    """Whatever is put and asked: the bytes are within the bound, and what is said was put last."""

    @initialize(room=st.integers(1, 12))
    def begin(self, room: int) -> None:
        self.cache = SegmentCache(room * (ENTRY_BYTES + 100))
        self.put_last: dict[int, tuple[set[int], float]] = {}
        self.now = 0.0

    @rule(segment=st.integers(0, 15), slots=st.sets(st.integers(0, 3)))
    def put(self, segment: int, slots: set[int]) -> None:
        self.now += 1
        value = value_of({segment: slots} if slots else {})
        self.cache.put(field(segment), value, self.now)
        self.put_last[segment] = slots, self.now

    @rule(segment=st.integers(0, 15))
    def ask(self, segment: int) -> None:
        copied = self.cache.match(keys_of(segment))
        if copied.missing:
            assert not copied.stretches
            assert self.cache.lacking(keys_of(segment), 0.0) == [0]
            return
        slots, at = self.put_last[segment]
        assert copied.read_at == at
        assert {one.slot for one in copied.stretches} == slots
        assert self.cache.lacking(keys_of(segment), at) == []
        assert self.cache.lacking(keys_of(segment), at + 0.5) == [0]

    @invariant()
    def holds(self) -> None:
        check_cache(self.cache)


TestCache = CacheMachine.TestCase
