"""Look-ups without a server: any content, as a dict of fields, against sets."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.indexer.segment_values import encode, pack
from warmpath.indexer.index.contract import Stretch
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.keys.segment_value import BadSegmentError
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.lookup import Keys, rounds, stretches

NAMES = KeyNames("t", buckets=4)
Content = dict[int, dict[int, set[int]]]
"""By segment and key: slots."""


def word(number: int) -> bytes:
    return number.to_bytes(8, "little")


def stored(content: Content, spilled: Sequence[int] = ()) -> dict[str, dict[bytes, bytes]]:
    """Return content as the hashes of a server."""
    found: dict[str, dict[bytes, bytes]] = {}
    for segment, held in content.items():
        fields = found.setdefault(NAMES.bucket(NAMES.bucket_of(segment)), {})
        if segment in spilled:
            fields[word(segment)] = b"\x02\0\0\0" + len(held).to_bytes(4, "little")
            for key, slots in held.items():
                fields[word(segment) + word(key)] = encode(pack({key: slots}))
        elif held:
            fields[word(segment)] = encode(pack(held))
    return found


def found(
    keys: Sequence[int] | Keys, server: dict[str, dict[bytes, bytes]]
) -> tuple[list[Stretch], list[Exception]]:
    """Return what is found on a server in two rounds at most."""
    values: dict[bytes, bytes | None] = {}
    trips = 0
    for parts in rounds(NAMES, keys, values):
        trips += 1
        for bucket, fields in parts.items():
            values |= {one: server.get(NAMES.bucket(bucket), {}).get(one) for one in fields}
    assert trips <= 2
    return stretches(np.asarray(keys, "<u8"), values)


def expected(held: list[set[int]]) -> list[Stretch]:
    found = []
    for slot in set().union(*held):
        start = None
        for at, slots in enumerate([*held, set()]):
            if slot in slots and start is None:
                start = at
            elif slot not in slots and start is not None:
                found.append(Stretch(slot, start, at))
                start = None
    return sorted(found)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], Content, list[int]]:
    """Return a prompt's keys, content with branches, and which segments are spilled."""
    blocks = draw(st.integers(0, 200))
    keys = [(at + 1) * 1_000_003 for at in range(blocks)]
    content: Content = {}
    for start in range(0, blocks, SEGMENT):
        segment = keys[start : start + SEGMENT]
        held: dict[int, set[int]] = {}
        for slot in draw(st.sets(st.integers(2**62, 2**62 + 20), max_size=12)):
            for key in segment[: draw(st.integers(0, len(segment)))]:
                held.setdefault(key, set()).add(slot)
        for number in range(draw(st.integers(0, 3))):
            held[7 * number + 1] = {2**62}
        for key in draw(st.lists(st.sampled_from(segment), max_size=3)):
            held.pop(key, None)
        if draw(st.booleans()):
            order = draw(st.permutations(sorted(held)))
            held = {key: held[key] for key in order}
        content[keys[start]] = held
    return keys, content, draw(st.lists(st.sampled_from(keys[::SEGMENT]))) if keys else []


@given(prompts())
def test_a_prompt_is_found_wherever_it_lies(case: tuple[list[int], Content, list[int]]) -> None:
    keys, content, spilled = case
    held = [content[keys[at - at % SEGMENT]].get(key, set()) for at, key in enumerate(keys)]
    parts, failed = found(keys, stored(content, spilled))
    assert sorted(parts) == expected(held)
    assert failed == []


def test_what_was_not_read_leaves_the_rest() -> None:
    keys = list(range(100, 100 + 3 * SEGMENT))
    first, last = (encode(pack({keys[at]: {5}})) for at in (0, 128))
    values = {word(keys[0]): first, word(keys[128]): last}
    assert len(list(rounds(NAMES, keys, values))) == 1
    of_all = stretches(np.asarray(keys, "<u8"), values)
    assert of_all == ([Stretch(5, 0, 1), Stretch(5, 128, 129)], [])


@given(st.binary(min_size=1, max_size=120), st.integers(0, 2))
def test_a_bad_value_says_that_nobody_holds_its_blocks(junk: bytes, kind: int) -> None:
    keys = list(range(100, 200))
    good = encode(pack({key: {5} for key in keys[64:]}))
    values = {word(100): bytes([kind, 0, 1, 0]) + junk, word(164): good}
    for parts in rounds(NAMES, keys, values):
        values |= {one: junk for of in parts.values() for one in of if one not in values}
    held, failed = stretches(np.asarray(keys, "<u8"), values)
    assert Stretch(5, 64, 100) in held
    for error in failed:
        assert isinstance(error, BadSegmentError)


def test_a_value_of_no_bytes_is_bad_and_not_one_that_is_missing() -> None:
    parts, [problem] = found([1], {NAMES.bucket(NAMES.bucket_of(1)): {word(1): b""}})
    assert not parts
    assert isinstance(problem, BadSegmentError)


def test_keys_may_be_an_array() -> None:
    keys = np.array([2**63 + 1, 2], np.uint64)
    server = stored({2**63 + 1: {2**63 + 1: {1}, 2: {1}}})
    assert found(keys, server)[0] == [Stretch(1, 0, 2)]
