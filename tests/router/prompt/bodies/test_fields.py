"""Bodies that hold very much are refused by name, or decoded while others have their turn.

A document without its strings, and its strings put back, are what a decoder makes of the whole.
"""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.router.prompt.turns import turns_and_result
from warmpath.indexer.keys.key import pack_tokens
from warmpath.router.inference_api.apis import PATHS
from warmpath.router.inference_api.body import Api
from warmpath.router.prompt.bodies import fields as body_fields
from warmpath.router.prompt.bodies.fields import (
    MOST_VALUES,
    FieldError,
    put_back,
    raw_fields,
    take_out,
    value_counts,
)
from warmpath.router.prompt.bodies.openai import CHAT, COMMON, Text, parse_chat, parse_completions
from warmpath.router.prompt.limits import BadRequestError

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


LISTS: list[Any] = [[]] * MOST_VALUES


@pytest.mark.parametrize(
    "many",
    [
        {"tools": LISTS},
        {"unknown": LISTS},
        {"unknown": dict.fromkeys(map(str, range(MOST_VALUES)))},
    ],
)
async def test_a_chat_of_too_many_values_is_refused(many: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], **many}
    with pytest.raises(BadRequestError, match=f"holds more than {MOST_VALUES} values") as refused:
        await parse_chat(json.dumps(body).encode(), "body")
    assert refused.value.field == "body"


async def test_a_field_of_a_completion_may_not_use_what_its_ids_leave() -> None:
    raw = json.dumps({"prompt": [1], "echo": LISTS}).encode()
    with pytest.raises(BadRequestError, match=f"holds more than {MOST_VALUES} values") as refused:
        await parse_completions(raw, "body", 1_000_000)
    assert refused.value.field == "body.echo"


async def test_a_long_text_is_one_value_whatever_is_in_it() -> None:
    text = '[1, {"a": 2}],' * 20_000
    chat = {"messages": [{"role": "user", "content": text}]}
    parsed = await parse_chat(json.dumps(chat).encode(), "body")
    assert parsed.content.chat.messages == chat["messages"]  # type: ignore[union-attr]


@pytest.mark.parametrize("is_nested", [False, True])
def test_others_have_their_turn_while_many_ids_are_read(*, is_nested: bool) -> None:
    ids = list(range(100_000))
    raw = json.dumps({"prompt": [ids] if is_nested else ids}).encode()
    turns, body = turns_and_result(parse_completions(raw, "body", 100_000))
    assert body.content == pack_tokens(ids)
    assert turns > len(raw) / (4 * body_fields.SLICE_BYTES)


async def test_ids_past_their_limit_are_counted_to_the_last() -> None:
    raw = json.dumps({"prompt": [7] * 30_000}).encode()
    with pytest.raises(BadRequestError) as refused:
        await parse_completions(raw, "body", 1000)
    assert str(refused.value) == ("body.prompt: has 30000 tokens; limits.max-prompt-tokens is 1000")


@given(st.one_of(VALUES, st.lists(st.integers(-2, 1 << 33), max_size=30)), st.integers(1, 20))
def test_a_prompt_is_read_alike_however_it_is_sliced(prompt: Any, slice_bytes: int) -> None:
    raw = json.dumps({"prompt": prompt}).encode()

    def read() -> object:
        try:
            body = asyncio.run(parse_completions(raw, "body", 1_000_000))
        except BadRequestError:
            # Of several things that are wrong with it, the one that is said may be another.
            return None
        return body.content.text if isinstance(body.content, Text) else body.content

    whole = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_fields, "SLICE_BYTES", slice_bytes)
        assert read() == whole
    if isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
        is_packed = all(0 <= one < 1 << 32 for one in prompt)
        assert whole == (pack_tokens(prompt) if is_packed else None)


@given(VALUES, st.integers(1, 20))
def test_values_are_counted_alike_however_they_are_sliced(value: Any, slice_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_fields, "SLICE_BYTES", slice_bytes)
        counted = 1 + sum(value_counts(json.dumps(value).encode()))
    # An empty list counts as if it had a value.
    assert _values(value) <= counted <= 2 * _values(value)


def _values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_values, value.values()))
    return 1 + sum(map(_values, value)) if isinstance(value, list) else 1
