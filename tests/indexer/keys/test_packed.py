"""The packed form of a segment: what it says, and what it does with bytes that say nothing."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.indexer.segment_values import encode, pack
from warmpath.indexer.keys import segment_value
from warmpath.indexer.keys.segment_value import BadSegmentError, decode, spilled_blocks
from warmpath.lab.verify.structure import holders

WORDS = st.integers(0, 2**64 - 1)
HOLDERS = st.dictionaries(
    WORDS, st.sets(st.integers(2**60, 2**60 + 30), min_size=1), min_size=1, max_size=30
)


def test_a_value_is_laid_out_as_it_is_said_to_be() -> None:
    value = encode(pack({0x11: {7}, 0x22: {7, 9}}))
    assert value == (
        b"\x01\0\x02\0"
        + (7).to_bytes(8, "little")
        + (9).to_bytes(8, "little")
        + (0x11).to_bytes(8, "little")
        + b"\x01"
        + (0x22).to_bytes(8, "little")
        + b"\x03"
    )


@given(HOLDERS)
def test_what_is_packed_is_unpacked(held: dict[int, set[int]]) -> None:
    value = encode(pack(held))
    found = decode(value)
    assert holders(found) == held
    assert encode(found) == value
    assert segment_value.slots_of(value) == found.slots
    for column, slot in enumerate(found.slots):
        assert set(found.held(column).tolist()) == {k for k, slots in held.items() if slot in slots}


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_read(value: bytes) -> None:
    for one in (value, b"\x01\0" + value, b"\x02\0\0\0" + value, b"\x01\0\x01\0" + value):
        with suppress(BadSegmentError):
            if spilled_blocks(one) is None:
                assert encode(decode(one)) == one


@given(HOLDERS, st.data())
def test_a_value_cut_short_or_changed_is_refused_or_read(
    held: dict[int, set[int]], data: st.DataObject
) -> None:
    value = bytearray(encode(pack(held)))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    with suppress(BadSegmentError):
        if spilled_blocks(cut) is None:
            assert encode(decode(cut)) == cut


WRONG = {
    "empty": b"",
    "short": b"\x01\0",
    "second byte": b"\x01\x01\x01\0" + bytes(17),
    "kind": b"\x03\0\x01\0" + bytes(17),
    "no column": b"\x01\0\0\0" + bytes(8),
    "no record": b"\x01\0\x01\0" + bytes(8),
    "cut": b"\x01\0\x01\0" + bytes(16),
    "bits": b"\x01\0\x01\0" + bytes(16) + b"\x02",
    "columns": b"\x01\0\xff\xff" + bytes(100),
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG)
def test_what_is_no_value_is_refused(value: bytes) -> None:
    with pytest.raises(BadSegmentError):
        decode(value)


def test_more_columns_than_can_be_counted_are_refused() -> None:
    with pytest.raises(ValueError, match="65535 columns, not 65536"):
        encode(pack({1: set(range(65536))}))


@pytest.mark.parametrize("value", [b"\x02\0\0\0", b"\x02\0\0\x01\0\0\0\0", b"\x02" + bytes(8)])
def test_a_marker_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(BadSegmentError):
        spilled_blocks(value)
