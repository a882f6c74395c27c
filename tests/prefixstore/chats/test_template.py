"""Chat templates: rendered as transformers does, refused where they cannot be."""

from datetime import UTC, datetime
from typing import Any

import pytest

from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
from warmpath.prefixstore.chats.chat_request import chat_of
from warmpath.prefixstore.chats.jinja_template import RenderLimitError, TemplateError
from warmpath.prefixstore.chats.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


class Template(ChatTemplate):
    def render(self, messages: Any, **options: Any) -> str:  # type: ignore[override]
        return super().render(Chat(messages, **options))


def template(source: str | dict[str, str], most: int | None = None, **options: Any) -> Template:
    model = ModelTemplate(source, {"bos_token": "<s>"}, **options)
    return Template(model, lambda: datetime(2026, 1, 2, tzinfo=UTC), most)


def test_blocks_are_trimmed_and_special_tokens_known() -> None:
    source = "{{ bos_token }}\n  {% for m in messages %}\n{{ m.content }}\n  {% endfor %}\nend"
    assert template(source).render(MESSAGES) == "<s>\nhi\nend"


def test_loop_controls_the_date_and_json_work() -> None:
    source = (
        "{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}{{ strftime_now('%Y') }}"
    )
    rendered = template(source).render([{"role": "user", "content": "<é>"}, *MESSAGES])
    assert rendered == '{"role": "user", "content": "<é>"}2026'


def test_a_refusal_of_the_template_is_ours() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ missing.field }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_what_a_template_may_not_or_cannot_do_is_an_error(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render(MESSAGES)


def test_a_broken_template_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(TemplateError, match="broken"):
        template("{% for %}")


PARTS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]


def test_text_parts_are_joined_for_templates_that_take_text() -> None:
    source = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert template(source).render(PARTS) == "a\nb"


def test_parts_are_left_to_templates_that_iterate_over_them() -> None:
    source = (
        "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
    )
    assert template(source).render(PARTS) == "[a][b]"


def test_a_part_that_is_no_text_is_refused_by_name() -> None:
    message = {"role": "user", "content": [{"type": "image_url"}]}
    with pytest.raises(TemplateError, match=r"messages\[0\].content\[0\]: .* for image"):
        template("x").render([message])


def test_a_final_message_can_be_continued() -> None:
    source = "{% for m in messages %}<{{ m.content }}></end>{% endfor %}"
    rendered = template(source).render(
        MESSAGES, add_generation_prompt=False, continue_final_message=True
    )
    assert rendered == "<hi"


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


def test_output_is_bounded() -> None:
    with pytest.raises(RenderLimitError, match="more than 10 bytes"):
        template("{{ 'x' * 11 }}", most=10).render(MESSAGES)
