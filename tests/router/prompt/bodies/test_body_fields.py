"""Bodies that hold very much: refused by name, or decoded while others have their turn."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.router.prompt.turns import turns_and_result
from warmpath.indexer.keys.key import pack_tokens
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.bodies import fields as body_fields
from warmpath.router.prompt.bodies.fields import MOST_VALUES, value_counts
from warmpath.router.prompt.bodies.openai import Text, parse_chat, parse_completions

MESSAGES = [{"role": "user", "content": "a"}]
LISTS: list[Any] = [[]] * MOST_VALUES

VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(alphabet='a"\\,[{\n', max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(alphabet='"\\,[', max_size=3), inner, max_size=4),
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": MESSAGES, "tools": LISTS}, "body"),
        ({"messages": MESSAGES, "unknown": LISTS}, "body"),
        ({"messages": MESSAGES, "unknown": dict.fromkeys(map(str, range(MOST_VALUES)))}, "body"),
    ],
)
async def test_a_chat_of_too_many_values_is_refused(body: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequestError, match=f"holds more than {MOST_VALUES} values") as refused:
        await parse_chat(json.dumps(body).encode(), field)
    assert refused.value.field == field


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
