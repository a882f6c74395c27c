"""A document without its strings, and its strings put back, are what a decoder makes of the whole."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.router.prompt.turns import turns_and_result
from warmpath.router.inference_api.apis.table import PATHS
from warmpath.router.inference_api.body import Api
from warmpath.router.prompt.bodies import fields as body_fields
from warmpath.router.prompt.bodies.fields import FieldError, put_back, raw_fields, take_out
from warmpath.router.prompt.bodies.openai import CHAT, COMMON

MOST = 1000
SLICE_BYTES = 24
SHORT_BYTES = 4

CHARACTERS = st.sampled_from([*'a "\\/\n\t\0é中😀\ufffd:,[]{}u', "\ud7ff", "\ue000"])
TEXTS = st.text(CHARACTERS, max_size=90)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-(1 << 40), 1 << 40), st.booleans(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def read(raw: bytes) -> Any:
    """Decode a document by way of `take_out`."""

    async def whole() -> Any:
        document, strings = await take_out(raw, MOST)
        return await put_back(msgspec.json.decode(document), strings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_fields, "SLICE_BYTES", SLICE_BYTES)
        patch.setattr(body_fields, "SHORT_BYTES", SHORT_BYTES)
        patch.setattr(body_fields, "VALUES_AT_ONCE", 2)
        return asyncio.run(whole())


def escaped(text: str, which: int) -> str:
    """Return a JSON string in which the characters that `which` has a bit for are escaped."""
    letters = []
    for at, letter in enumerate(text):
        units = letter.encode("utf-16-be").hex()
        codes = [units[i : i + 4] for i in range(0, len(units), 4)]
        plain = json.dumps(letter, ensure_ascii=False)[1:-1]
        letters.append("".join(f"\\u{code}" for code in codes) if which >> at % 64 & 1 else plain)
    return '"' + "".join(letters) + '"'


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_a_document_is_read_as_by_the_decoder_alone(
    value: Any, is_ascii: bool, indent: int | None
) -> None:
    raw = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    assert read(raw) == msgspec.json.decode(raw) == value


@given(TEXTS, st.integers(0, (1 << 64) - 1))
@example("😀" * 30, (1 << 64) - 1)
@example("\\" * 60, 0)
@example("\\ud83d" * 10, 0)
def test_a_string_is_read_alike_however_it_is_escaped(text: str, which: int) -> None:
    assert read(f"[{escaped(text, which)}]".encode()) == [text]


@given(VALUES, st.data())
def test_a_document_is_refused_where_the_decoder_refuses_it(
    value: Any, data: st.DataObject
) -> None:
    raw = bytearray(json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        end = data.draw(st.integers(at, min(len(raw), at + 2)))
        raw[at:end] = data.draw(
            st.sampled_from([b"", b'"', b"\\", b"\n", b"\xff", b"a", b"\\u", b","])
        )
    try:
        known = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        with pytest.raises((FieldError, msgspec.DecodeError, UnicodeDecodeError)):
            read(bytes(raw))
    else:
        assert read(bytes(raw)) == known


async def test_the_name_of_a_field_is_known_however_it_is_escaped() -> None:
    names = {name for api in PATHS.values() if isinstance(api, Api) for name in api.fields}
    for name in (*names, *CHAT, *COMMON):
        raw = f'{{{escaped(name, -1)}: "a  b", "other": "{"x" * 300_000}"}}'.encode()
        assert await (await raw_fields(raw, (name,))).decoded(name) == "a  b"


async def test_spaces_between_values_go_and_those_in_strings_stay() -> None:
    texts = [" " * size for size in (2, 200, 300, 40_000)]
    gap = " \n" * 50_000
    raw = f"[{gap}{json.dumps(texts)}{gap}]".encode()
    document, strings = await take_out(raw, MOST)
    assert len(document) < 1000
    assert await put_back(msgspec.json.decode(document), strings) == [texts]


def test_of_equal_names_the_last_value_counts() -> None:
    name = escaped("n" * 70, -1)
    assert read(f'{{{name}: 1, "{"n" * 70}": 2}}'.encode()) == {"n" * 70: 2}


def test_too_many_strings_are_refused_before_the_last_is_read() -> None:
    with pytest.raises(FieldError, match=f"holds more than {MOST} strings"):
        read(b"[" + b'"",' * (2 * MOST) + b"1]")


def test_a_number_without_end_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(FieldError, match=f"holds a number of more than {SLICE_BYTES} bytes"):
        read(b"[" + b"1" * (3 * SLICE_BYTES) + b"]")


@pytest.mark.parametrize("letter", ["\\u4e2d", "\\n", "\\ud83d\\ude00", "中", "a", "\\\\"])
def test_others_have_their_turn_while_a_long_string_is_decoded(letter: str) -> None:
    text = letter * (1 << 20)
    turns, (document, strings) = turns_and_result(take_out(f'["{text}"]'.encode(), MOST))
    assert len(document) < 100
    [read] = asyncio.run(put_back(msgspec.json.decode(document), strings))
    assert read == json.loads(f'"{letter}"') * (1 << 20)
    assert turns > len(text.encode()) / body_fields.SLICE_BYTES


@pytest.mark.parametrize("fault", [b"\xff", b"\\ud800", b"\\x", b"\n"])
def test_a_string_that_is_no_json_matters_where_it_does_to_the_decoder(fault: bytes) -> None:
    class Other(msgspec.Struct):
        """A body with one field that is read."""

        a: int

    async def document(raw: bytes) -> bytes:
        return (await take_out(raw, MOST))[0]

    for size in (100, 100_000):
        raw = b'{"a": 1, "b": "' + b"x" * size + fault + b'"}'
        taken = asyncio.run(document(raw))
        assert _or_error(taken, Other) == _or_error(raw, Other)
        assert _or_error(taken, Any) is None is _or_error(raw, Any)


def _or_error(raw: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
