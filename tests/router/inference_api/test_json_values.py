"""Values at a few paths of a document that comes in chunks are those that a decoder finds there."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.inference_api.json_values import MOST_NESTED, MOST_VALUE_BYTES, JsonValues, Paths

PATHS: Paths = {b"a": "a", b"b": {b"a": "ba", b"c": {b"a": "bca"}}, "é".encode(): "é"}
KEYS = st.sampled_from(["a", "b", "c", "é", 'q"', "\\", "", "long" * 30])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=25,
)  # fmt: skip


def found(document: bytes, size: int) -> list[tuple[str, bytes | None]]:
    values: list[tuple[str, bytes | None]] = []

    def take(name: str, value: bytes | None) -> None:
        values.append((name, value))
        if value is not None:
            assert document[reader.start : reader.stop] == value

    reader = JsonValues(PATHS, take)
    for at in range(0, len(document), size):
        reader.feed(document[at : at + size])
    return values


def wanted(value: Any, paths: Any) -> list[tuple[str, Any]]:
    """Return the values as a decoder finds them; lists of objects count as their objects."""
    if isinstance(value, list):
        return [one for item in value if isinstance(item, dict) for one in wanted(item, paths)]
    if not isinstance(value, dict):
        return []
    values = []
    for key, inner in value.items():
        path = paths.get(key.encode())
        if isinstance(path, str):
            values.append((path, inner))
        elif path is not None:
            values += wanted(inner, path)
    return values


@given(st.dictionaries(KEYS, VALUES), st.sampled_from([1, 2, 7, 4096]), st.booleans())
def test_the_values_are_those_of_a_decoder(value: Any, size: int, is_ascii: bool) -> None:
    document = json.dumps(value, ensure_ascii=is_ascii, indent=1 if size == 2 else None).encode()
    values = [(name, json.loads(raw or b"")) for name, raw in found(document, size)]
    assert values == wanted(value, PATHS)


def test_a_list_of_documents_is_no_document() -> None:
    assert found(b'[{"a": 1}]', 4096) == []


def test_a_value_that_is_too_long_is_told_without_its_content() -> None:
    fits = b'"%b"' % (b"x" * (MOST_VALUE_BYTES - 2))
    assert found(b'{"a":%b,"b":{"a":1}}' % fits, 1000) == [("a", fits), ("ba", b"1")]
    long = b'"%b"' % (b"x" * (MOST_VALUE_BYTES - 1))
    assert found(b'{"a":%b,"b":{"a":1}}' % long, 1000) == [("a", None), ("ba", b"1")]


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_document_that_nests_too_deeply_is_not_read_on(name: str) -> None:
    for depth, is_read in ((MOST_NESTED - 2, True), (MOST_NESTED + 2, False)):
        document = f'{{"{name}": {"[" * depth}{"]" * depth}, "b": {{"a": 1}}}}'.encode()
        assert (("ba", b"1") in found(document, 100)) == is_read
