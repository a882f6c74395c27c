"""Chats are read as vLLM reads them, and refused where they cannot be.

`vllm_chats.jsonl` is a recording (`tests/vllm/record_chats.py` of commit 7b94846c).
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
from warmpath.prefixstore.chats.chat_request import chat_of
from warmpath.prefixstore.chats.conversation import Conversation
from warmpath.prefixstore.chats.jinja_template import JinjaTemplate, TemplateError
from warmpath.prefixstore.chats.template import ChatTemplate, _without_developers, takes_parts
from warmpath.prefixstore.chats.traits import traits_of

HERE = Path(__file__).parents[1]
RECORDED = [json.loads(line) for line in (HERE / "vllm_chats.jsonl").read_bytes().splitlines()]
BODIES = [one for one in RECORDED if "body" in one]
MESSAGES = [{"role": "user", "content": "hi"}]


class Template(ChatTemplate):
    def render(self, messages: Any, **options: Any) -> str:  # type: ignore[override]
        return super().render(Chat(messages, **options))


def template(source: str | dict[str, str], **options: Any) -> Template:
    model = ModelTemplate(source, {"bos_token": "<s>"}, **options)
    return Template(model, lambda: datetime.now(UTC))


PARTS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]


def test_parts_are_left_to_templates_that_iterate_over_them() -> None:
    source = (
        "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
    )
    assert template(source).render(PARTS) == "[a][b]"


def test_a_part_that_is_no_text_is_refused_by_name() -> None:
    message = {"role": "user", "content": [{"type": "image_url"}]}
    with pytest.raises(TemplateError, match=r"messages\[0\].content\[0\]: .* for image"):
        template("x").render([message])


TEXT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PICTURES = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
    {"role": "user", "content": [{"type": "text", "text": "b"}, PARTS[0]["content"][0], {"image_url": "u"}]},
]  # fmt: skip


def test_a_picture_in_a_text_needs_to_be_told_what_the_engine_writes() -> None:
    with pytest.raises(TemplateError, match="placeholders") as caught:
        template(TEXT).render(PICTURES)
    assert caught.value.field == "messages[0].content[0]"
    told = template(TEXT, placeholders={"image": "<|image_{i}|>"})
    assert told.render(PICTURES) == "<user><|image_1|><user><|image_2|>\nb\na"


def test_more_placeholders_than_pictures_are_refused() -> None:
    told = template(TEXT, placeholders={"image": "<image>"})
    parts = [{"type": "text", "text": "<image> <image>"}, {"image_url": "u"}]
    with pytest.raises(TemplateError, match="more often"):
        told.render([{"role": "user", "content": parts}])


def test_tools_take_the_template_for_tools() -> None:
    named = template({"default": "one", "tool_use": "{{ tools | length }} tools", "rag": "two"})
    assert named.render(MESSAGES) == "one"
    assert named.render(MESSAGES, tools=[{"type": "function"}]) == "1 tools"
    with pytest.raises(TemplateError, match="tools only"):
        template({"tool_use": "x"}).render(MESSAGES)
    with pytest.raises(TemplateError, match="default"):
        template({"rag": "x"})


def test_a_developer_is_the_system_to_a_template_that_does_not_know_one() -> None:
    chat = [*MESSAGES, {"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]
    assert template(TEXT).render(chat) == "<system>a\n\nb<user>hi"
    assert template(TEXT + "{# 'developer' #}").render(chat) == "<user>hi<system>a<developer>b"


def test_variables_of_a_request_go_before_special_tokens() -> None:
    assert template("{{ bos_token }}").render(MESSAGES, kwargs={"bos_token": "B"}) == "B"


@pytest.mark.parametrize("name", ["messages", "tools", "tokenize", "conversation", "chat_template"])
def test_a_request_may_not_take_the_place_of_what_the_engine_gives(name: str) -> None:
    with pytest.raises(TemplateError) as caught:
        chat_of({"messages": MESSAGES, "chat_template_kwargs": {name: []}})
    assert caught.value.field == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"chat_template": ""}, "chat_template"),
        ({"messages": []}, "messages"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"function": {"name": "f", "parameters": "x"}}]},
            "tools[0].function.parameters",
        ),
        ({"documents": ["x"]}, "documents"),
        ({"reasoning_effort": "most"}, "reasoning_effort"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"continue_final_message": 1}, "continue_final_message"),
    ],
)
def test_a_field_that_cannot_be_taken_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(TemplateError) as caught:
        chat_of({"messages": MESSAGES, **fields})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": 5}, "messages[0]"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "file"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[0].tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_message_that_cannot_be_taken_is_named(message: dict[str, Any], field: str) -> None:
    with pytest.raises(TemplateError) as caught:
        template(TEXT).render([message])
    assert caught.value.field == field


def test_what_a_template_says_of_a_refusal_is_cut_short() -> None:
    with pytest.raises(TemplateError) as caught:
        template("{{ raise_exception('x' * 10000) }}").render(MESSAGES)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("recorded", [one for one in RECORDED if "template" in one], ids=str)
def test_vllm_finds_the_same_form_of_contents_and_place_of_the_system_message(
    recorded: dict[str, str],
) -> None:
    source = (HERE / "templates" / recorded["template"]).read_text(encoding="utf-8")
    tree = JinjaTemplate(source, lambda: datetime.now(UTC)).tree
    assert takes_parts(tree) == (recorded["format"] == "openai")
    whole = ChatTemplate(ModelTemplate(source, {"bos_token": "<s>"}), lambda: datetime.now(UTC))
    assert traits_of(whole).wants_system_first == recorded["wants_system_first"]


@pytest.mark.parametrize("recorded", BODIES, ids=lambda one: json.dumps(one["body"])[:60])
def test_vllm_hands_a_template_the_same_chat_and_variables(recorded: dict[str, Any]) -> None:
    chat = chat_of(recorded["body"])
    placeholders = {"image": "<image>", "audio": "<audio>", "video": "<video>"}
    for form in ("string", "openai"):
        talk = Conversation(parts=form == "openai", placeholders=placeholders)
        found = talk.messages(chat.messages)
        assert json.dumps(found) == json.dumps(_without_nulls(recorded[form]))
        merged = _without_developers(found)
        assert json.dumps(merged) == json.dumps(
            _without_nulls(recorded[f"{form}_without_developers"])
            if any(one["role"] == "developer" for one in found)
            else found
        )
    expected = recorded["kwargs"]
    for engines in ("tokenize", "return_dict"):
        expected.pop(engines, None)
    assert json.dumps(chat.tools) == json.dumps(expected.pop("tools", None))
    assert chat.documents == expected.pop("documents", None)
    assert chat.add_generation_prompt == expected.pop("add_generation_prompt")
    assert chat.continue_final_message == expected.pop("continue_final_message")
    assert chat.kwargs == expected


def _without_nulls(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if value is not None} for one in chat]
