"""Events of a cache with copies of blocks, announced as by an engine that keeps each block once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from warmpath.lab.simworker.events.from_v1 import KeptOnce
from warmpath.lab.simworker.events.wire_event import CPU, Cleared, Removed, Stored


def stored(first: int, stop: int, medium: str = "GPU") -> Stored:
    """Return a store of the blocks `first` to `stop` of one chain, two tokens each."""
    return Stored(
        [bytes([number]) for number in range(first, stop)],
        bytes([first - 1]) if first else None,
        [token for number in range(first, stop) for token in (number, number)],
        2,
        medium=medium,
        extra_keys=[[str(number)] for number in range(first, stop)],
    )


def removed(*numbers: int, medium: str = "GPU") -> Removed:
    return Removed([bytes([number]) for number in numbers], medium=medium)


def test_a_second_copy_is_told_neither_when_it_comes_nor_when_it_goes() -> None:
    once = KeptOnce()
    assert once.announced([stored(0, 2)]) == [stored(0, 2)]
    assert once.announced([stored(1, 2), removed(1)]) == []
    assert once.announced([removed(1, 0)]) == [removed(1, 0)]


def test_what_is_new_of_a_store_keeps_its_parents_tokens_and_extra_keys() -> None:
    once = KeptOnce()
    once.announced([stored(1, 2), stored(3, 4)])
    assert once.announced([stored(0, 6)]) == [stored(0, 1), stored(2, 3), stored(4, 6)]


def test_each_medium_has_copies_of_its_own_and_a_clear_ends_all() -> None:
    once = KeptOnce()
    assert once.announced([stored(0, 1), stored(0, 1, CPU)]) == [stored(0, 1), stored(0, 1, CPU)]
    assert once.announced([removed(0)]) == [removed(0)]
    assert once.announced([Cleared(), stored(0, 1, CPU)]) == [Cleared(), stored(0, 1, CPU)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 4))))
def test_whoever_is_told_knows_what_is_there(history: list[tuple[bool, int, int]]) -> None:
    once, copies, known = KeptOnce(), Counter[int](), set[bytes]()
    for stores, first, count in history:
        numbers = range(first, first + count)
        if stores:
            copies.update(numbers)
        else:
            numbers = [number for number in numbers if copies[number]]
            copies.subtract(numbers)
        for event in once.announced(
            [stored(first, first + count) if stores else removed(*numbers)]
        ):
            assert not isinstance(event, Cleared)
            for digest in event.block_hashes:
                assert (digest in known) is isinstance(event, Removed)
            known ^= set(event.block_hashes)
        assert known == {bytes([number]) for number in +copies}
