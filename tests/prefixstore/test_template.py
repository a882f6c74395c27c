"""Chat templates: rendered as transformers does, refused where they cannot be."""

from datetime import UTC, datetime
from typing import Any

import pytest

from prefixstore.template import ChatTemplate, TemplateError

MESSAGES = [{"role": "user", "content": "hi"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(
        source, {"bos_token": "<s>"}, clock=lambda: datetime(2026, 1, 2, tzinfo=UTC)
    )


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
