"""Pickles without the pickle module, byte for byte those of Python's own."""

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.lab.simworker.v1.hashing.pickled import Value, encode

INTEGERS = st.one_of(
    st.integers(0, 300),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.builds(
        lambda shift, sign, off: min(max(sign * (1 << shift) + off, -(1 << 63)), (1 << 64) - 1),
        st.integers(0, 63),
        st.sampled_from([-1, 1]),
        st.integers(-1, 1),
    ),
)
VALUES: st.SearchStrategy[Value] = st.recursive(
    st.none() | INTEGERS | st.binary(max_size=300) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=6).map(tuple),
)


@given(value=VALUES)
def test_every_value_is_as_python_writes_it(value: Value) -> None:
    assert encode(value) == pickle.dumps(value, 5)


@given(
    parts=st.lists(VALUES, min_size=1, max_size=4), picks=st.lists(st.integers(0, 3), max_size=8)
)
def test_objects_that_come_again_are_references(parts: list[Value], picks: list[int]) -> None:
    value = tuple(parts[pick % len(parts)] for pick in picks)
    assert encode((value, value)) == pickle.dumps((value, value), 5)


@pytest.mark.deep
@pytest.mark.parametrize("length", [16, 13_106, 21_800, 21_845, 21_846, 32_768, 70_000])
@pytest.mark.parametrize("most", [1 << 8, 1 << 16, 1 << 20])
def test_frames_end_where_python_ends_them(length: int, most: int) -> None:
    tokens = tuple(random.Random(length).randrange(most) for _ in range(length))
    value = (b"p" * 32, tokens, (("lora", "a", "b"),))
    assert encode(value) == pickle.dumps(value, 5)


def test_more_than_256_objects_are_referred_to() -> None:
    texts = [f"text {number}" for number in range(300)]
    value = (*texts, *texts)
    assert encode(value) == pickle.dumps(value, 5)


@pytest.mark.parametrize("value", [1.5, {}, [1]])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no pickle for"):
        encode((1, value))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, "x" * (1 << 16)])
def test_what_is_out_of_range_is_refused(value: Value) -> None:
    with pytest.raises(ValueError, match=r"64 bits|are known"):
        encode(value)
