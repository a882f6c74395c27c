"""A body gets another model's name, and keeps every other byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpath.router.inference_api.model_name import (
    NameInResponse,
    Renaming,
    read_model,
    with_model,
)
from warmpath.router.prompt.limits import MOST_NAME_BYTES

KEYS = st.sampled_from(["model", "messages", "stream", "mod", 'x"model":', "ü"])
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5), st.just('"model": "no"')),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)
NAMES = st.text(max_size=12).filter(lambda name: name.isprintable())


@given(st.dictionaries(KEYS, VALUES), NAMES, st.sampled_from([None, 1]), st.booleans())
async def test_only_the_models_name_changes(
    fields: dict[str, Any], name: str, indent: int | None, is_ascii: bool
) -> None:
    body = json.dumps(fields, indent=indent, ensure_ascii=is_ascii).encode()
    renamed = await with_model(body, name)
    if "model" not in fields:
        assert renamed == body
        return
    assert json.loads(renamed) == fields | {"model": name}
    # The bytes before and behind the name are those of the body.
    written = json.dumps(fields["model"], indent=indent, ensure_ascii=is_ascii).encode()
    new = json.dumps(name, ensure_ascii=False).encode()
    assert len(renamed) - len(new) <= len(body)
    old = b'"model": ' + written
    if indent is None and body.count(old) == 1:
        assert renamed == body.replace(old, b'"model": ' + new)


@pytest.mark.parametrize(
    ("body", "renamed"),
    [
        (b'{"model":"a"}', b'{"model":"b"}'),
        (b' {"x" : 1e400,\n\t"model"\r\n: "a"\n, "y":[{"model":"a"}]} ', b' {"x" : 1e400,\n\t"model"\r\n: "b"\n, "y":[{"model":"a"}]} '),
        # The engine reads the last one of two; whichever an engine reads, it is the new one.
        (b'{"model":"a","z":1,"model":"c"}', b'{"model":"b","z":1,"model":"b"}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"b"}'),
        (b'{"model":null}', b'{"model":"b"}'),
        (b'{"model":{"a":[1]},"x":"\xff"}', b'{"model":"b","x":"\xff"}'),
        (b'\xef\xbb\xbf{"model":"a"}', b'\xef\xbb\xbf{"model":"b"}'),
        # Nothing to rename.
        (b'{"models":"a","Model":"a"}', b'{"models":"a","Model":"a"}'),
        (b'[{"model":"a"}]', b'[{"model":"a"}]'),
        (b'"model"', b'"model"'),
        (b"", b""),
        (b'{"model":"a', b'{"model":"a'),
    ],
)  # fmt: skip
async def test_odd_bodies_are_renamed_alike(body: bytes, renamed: bytes) -> None:
    assert await with_model(body, "b") == renamed


@given(st.binary(max_size=60), st.text(max_size=5))
async def test_any_bytes_can_be_asked_for_a_model(body: bytes, name: str) -> None:
    await with_model(body, name.encode(errors="ignore").decode())
    await read_model(body)


async def test_a_large_body_is_renamed_in_slices() -> None:
    text = '"model": "no", \\ \n' * 100_000
    fields = {"messages": [{"content": text}], "model": "a", "x": text}
    body = json.dumps(fields).encode()
    assert json.loads(await with_model(body, "b")) == fields | {"model": "b"}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"model":"a","stream":tru', "a"),
        (b'{"model":"a","messages":[{"content":"' + b"x" * 99999, "a"),
        (b'{"stream":false,"model":7}', ""),
        (b'{"model":"%b"}' % (b"m" * MOST_NAME_BYTES), "m" * MOST_NAME_BYTES),
        (b'{"model":"%b"}' % (b"m" * (MOST_NAME_BYTES + 1)), ""),
        (b'{"model":"\xff"}', ""),
        (b"\x1f\x8b\x08", ""),
    ],
)  # fmt: skip
async def test_a_body_that_is_cut_off_tells_what_it_can(body: bytes, found: str) -> None:
    assert await read_model(body) == found


NAMES = Renaming("demo", "gpt")


def renamed(document: bytes, size: int, names: Renaming = NAMES) -> bytes:
    """Return a response that comes in pieces of a size, with the client's name of the model."""
    name = NameInResponse(names)
    cut = (document[at : at + size] for at in range(0, len(document), size))
    parts = [name.feed(piece, may_hold=True) for piece in cut]
    return b"".join([*parts, name.feed(b"", may_hold=False)])


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b'{"id":"c","model":"demo","choices":[]}', b'{"id":"c","model":"gpt","choices":[]}'),
        (b'{"model": "demo"}', b'{"model": "gpt"}'),
        (b'data: {"model":"demo"}\n\n' * 2, b'data: {"model":"gpt"}\n\n' * 2),
        (b'data: {"response":{"model":"demo"}}\n\n', b'data: {"response":{"model":"gpt"}}\n\n'),
        (b'{"model":"demo-2","text":"demo"}', b'{"model":"demo-2","text":"demo"}'),
        (b'{"text":"\\"model\\":\\"demo\\""}', b'{"text":"\\"model\\":\\"demo\\""}'),
        (b"data: [DONE]\n\n", b"data: [DONE]\n\n"),
        (b'{"model":"dem', b'{"model":"dem'),
    ],
)  # fmt: skip
def test_a_response_gets_the_clients_name_however_it_is_cut(
    document: bytes, expected: bytes, size: int
) -> None:
    assert renamed(document, size) == expected


@given(
    st.text(min_size=1, max_size=9),
    st.text(min_size=1, max_size=9),
    st.text(max_size=30),
    st.integers(1, 9),
)
def test_any_name_and_text_come_back(asked: str, given: str, text: str, size: int) -> None:
    fields = {"text": text, "model": asked, "inner": [{"model": asked}, {"other": asked}]}
    expected = fields | {"model": given, "inner": [{"model": given}, {"other": asked}]}
    for is_ascii in (True, False):
        document = json.dumps(fields, ensure_ascii=is_ascii).encode(errors="ignore")
        names = Renaming(*(one.encode(errors="ignore").decode() for one in (asked, given)))
        assert json.loads(renamed(document, size, names)) == json.loads(
            json.dumps(expected, ensure_ascii=is_ascii).encode(errors="ignore")
        )


def test_a_piece_that_must_go_on_at_once_is_not_held() -> None:
    name = NameInResponse(NAMES)
    assert name.feed(b'{"model":"de', may_hold=False) == b'{"model":"de'
    assert name.feed(b'mo"}', may_hold=True) == b'mo"}'
