"""Published templates are rendered without a process, and all others never; the text is the same."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.prefixstore.chats.test_chat_parity import GIVEN, MESSAGES, TOKENS, WRITTEN
from warmpath.lab.local.tokenizer import TEMPLATE
from warmpath.prefixstore.chats import published as list_of
from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.prefixstore.chats.published import (
    MOST_BYTES,
    MOST_MESSAGES,
    MOST_VARIABLE_BYTES,
    digest,
    published,
)
from warmpath.prefixstore.chats.render_worker import RenderLimits
from warmpath.prefixstore.chats.renderer import ProcessRenderer

MIB = 1 << 20
LIMITS = RenderLimits(60.0, MIB, 512 * MIB, 100, 16 * MIB)
MODELS = {
    name: ModelTemplate(source, TOKENS, {"image": "<picture>"})
    for name, source in {**WRITTEN, "simulated": TEMPLATE}.items()
}
TOOLLESS = {"command-r", "harmony", "llama-3.1", "mistral-v3"}
PROCESS = "in a process: "


class Both:
    """A renderer that knows each template twice: as a published one, and as one for the process."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.renderer = ProcessRenderer(workers=1, limits=LIMITS)
        for name, model in MODELS.items():
            self.renderer.register(name, model, published(model, LIMITS.max_output_bytes))
            self.renderer.register(PROCESS + name, model)
        runner.run(self.renderer.start())

    def at_once(self, name: str, chat: Chat) -> Any:
        try:
            return self.renderer.render_at_once(name, chat)
        except TemplateError as error:
            return type(error), error.problem, error.field

    def by_process(self, name: str, chat: Chat) -> Any:
        assert self.renderer.render_at_once(PROCESS + name, chat) is None
        try:
            return self.runner.run(self.renderer.render(PROCESS + name, chat, None))
        except TemplateError as error:
            return type(error), error.problem, error.field


@pytest.fixture(scope="module", autouse=True)
def as_if_published() -> Iterator[None]:
    """Count the templates that tests have written as published."""
    added = {digest(source): name not in TOOLLESS for name, source in WRITTEN.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_of, "TAKES_TOOLS", list_of.TAKES_TOOLS | added)
        yield


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with asyncio.Runner() as runner:
        found = Both(runner)
        yield found
        runner.run(found.renderer.close())


def test_texts_and_refusals_are_those_of_the_process(both: Both) -> None:
    told = set()

    @settings(max_examples=examples(1000, desk=100))
    @given(name=st.sampled_from(sorted(MODELS)), chat=st.lists(MESSAGES, max_size=5), how=GIVEN)
    def compare(name: str, chat: list[dict[str, Any]], how: dict[str, Any]) -> None:
        fields = ("tools", "documents", "add_generation_prompt", "continue_final_message")
        taken = {field: how[field] for field in fields if field in how}
        kwargs = {key: value for key, value in how.items() if key not in fields}
        found = both.at_once(name, Chat(chat, **taken, kwargs=kwargs))
        if found is None:
            assert name in TOOLLESS
            assert "tools" in taken
            return
        assert found == both.by_process(name, Chat(chat, **taken, kwargs=kwargs))
        told.add(type(found))

    compare()
    assert told == {str, tuple}
    assert not both.renderer.replaced


def talk(messages: int, size: int = 1) -> Chat:
    return Chat([{"role": "user", "content": "x" * size} for _ in range(messages)])


@pytest.mark.parametrize(
    "chat",
    [
        talk(MOST_MESSAGES + 1),
        talk(2, MOST_BYTES // 2),
        Chat(talk(1).messages, [{"function": {"name": "f", "description": "x" * MOST_BYTES}}]),
        Chat(talk(1).messages, kwargs={"x": "x" * MOST_VARIABLE_BYTES}),
    ],
    ids=["messages", "bytes", "tools", "variables"],
)
def test_a_long_chat_goes_to_the_process(both: Both, chat: Chat) -> None:
    assert both.renderer.render_at_once("chatml", talk(MOST_MESSAGES)) is not None
    assert both.renderer.render_at_once("chatml", chat) is None
    found = both.runner.run(both.renderer.render("chatml", chat, None))
    assert found == both.by_process("chatml", chat)


LIKE_PUBLISHED = WRITTEN["chatml"]
LOOPS = "{% for a in messages %}" * 9 + "{% endfor %}" * 9


@pytest.mark.parametrize(
    "model",
    [
        ModelTemplate(""),
        ModelTemplate("{{ messages[0].content }}"),
        ModelTemplate("{{ 1|round(20000000, 'ceil') }}"),
        ModelTemplate("{% set x = messages[0].content|int(0, 16) %}{{ x is divisibleby(x) }}"),
        ModelTemplate("{{ messages[0].content.strip(messages[1].content) }}"),
        ModelTemplate("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        ModelTemplate("{% for"),
        ModelTemplate(LIKE_PUBLISHED + LOOPS),
        ModelTemplate(LOOPS + LIKE_PUBLISHED),
        ModelTemplate(LIKE_PUBLISHED.replace("system", "System")),
        ModelTemplate(" " + LIKE_PUBLISHED),
        ModelTemplate({"default": LIKE_PUBLISHED, "tool_use": LOOPS}),
        ModelTemplate({"rag": LIKE_PUBLISHED}),
        ModelTemplate(LIKE_PUBLISHED, placeholders={"image": "<{i}>"}),
    ],
)
def test_whatever_is_not_published_letter_by_letter_is_left_to_the_process(
    model: ModelTemplate,
) -> None:
    assert published(ModelTemplate(LIKE_PUBLISHED + " \n"), MIB) is not None
    assert published(model, MIB) is None
