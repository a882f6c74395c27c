"""Values at a few paths of a document that comes in chunks are those that a decoder finds there."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmpath.router.inference_api.json_values import (
    LEVELS,
    MOST_STEPS,
    MOST_VALUE_BYTES,
    JsonValues,
    Paths,
)

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

    def take(name: str, value: bytes | None, start: int) -> None:
        values.append((name, value))
        if value is not None:
            assert document[start : start + len(value)] == value

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


@given(
    st.text('{}[]:,"\\ab1 \n', max_size=60)
    | st.lists(
        st.sampled_from(
            [*'{}[]:,"\\', '"a"', '"b":', '"c":1,', '"z":"a",', '{"a":1}', "[[[[[1]]]]]"]
        )
    ).map("".join)
)
@example('"z":"a",:}').via("a colon without a key, after a member that is passed over")
def test_what_is_passed_over_at_once_changes_nothing(text: str) -> None:
    document = b"{" + text.encode()
    assert found(document, len(document)) == found(document, 1)


def test_a_document_of_too_many_parts_is_not_read_on() -> None:
    step = b'"c":1,'
    for count, is_read in ((MOST_STEPS // 5, True), (MOST_STEPS, False)):
        document = b'{"a":1,%b"b":{"a":2}}' % (count * step)
        assert found(document, 4096) == [("a", b"1"), ("ba", b"2")][: 1 + is_read]


def test_containers_within_a_skipped_one_are_no_steps() -> None:
    for part in (b'{"y":[{"z":[1,2]}]}', b"[[],[[]],[[[]]]]", b'"\\"{"'):
        assert found(b'{"x":[%b1],"a":1}' % (MOST_STEPS * (part + b",")), 32 << 10) == [("a", b"1")]


def test_a_list_of_documents_is_no_document() -> None:
    assert found(b'[{"a": 1}]', 4096) == []


def test_a_value_that_is_too_long_is_told_without_its_content() -> None:
    fits = b'"%b"' % (b"x" * (MOST_VALUE_BYTES - 2))
    assert found(b'{"a":%b,"b":{"a":1}}' % fits, 1000) == [("a", fits), ("ba", b"1")]
    long = b'"%b"' % (b"x" * (MOST_VALUE_BYTES - 1))
    assert found(b'{"a":%b,"b":{"a":1}}' % long, 1000) == [("a", None), ("ba", b"1")]


@pytest.mark.parametrize("size", [1, 100])
def test_a_value_that_nests_too_deeply_is_skipped(size: int) -> None:
    for depth, is_read in ((LEVELS, True), (LEVELS + 1, False), (5000, False)):
        value = b"[" * depth + b"]" * depth
        document = b'{"a":%b,"z":%b,"x":"%b","b":{"a":1}}' % (value, value, b"x" * MOST_VALUE_BYTES)
        assert found(document, size) == [("a", value if is_read else None), ("ba", b"1")]
