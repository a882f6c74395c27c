"""Messages that depend on the chat template become vLLM's chats; its traits are found by a model's names.

`vllm_messages.jsonl` is a recording of vLLM's own conversion (`tests/vllm/record_messages.py` of commit 7b94846c).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.prefixstore.chats.conversation import Conversation
from warmpath.prefixstore.chats.render_worker import RenderCrashedError, RenderTimeoutError
from warmpath.prefixstore.workers import ClosedError, FullError
from warmpath.router.inference_api.chats.vllm_messages import vllm_messages
from warmpath.router.inference_api.request import UnreadError, traits_of
from warmpath.router.prompt.models import Model, ModelTable

RECORDED = [
    json.loads(line)
    for line in Path(__file__).with_name("vllm_messages.jsonl").read_bytes().splitlines()
]


@pytest.mark.parametrize("recorded", RECORDED)
def test_the_chat_is_vllms_for_each_kind_of_template(recorded: dict[str, Any]) -> None:
    traits = TemplateTraits(
        wants_system_first=recorded["wants_system_first"],
        heeds_no_effort=recorded["heeds_no_effort"],
        writes_calls_as_given=False,
    )
    messages, fields = vllm_messages(recorded["body"], traits)
    for parts in (False, True):
        made, expected = (
            Conversation(parts=parts, placeholders={}).messages(given)
            for given in (messages, recorded["messages"])
        )
        assert made == expected
    assert fields["reasoning_effort"] == recorded["reasoning_effort"]


@pytest.mark.parametrize("recorded", RECORDED)
def test_without_the_template_such_messages_are_not_read(recorded: dict[str, Any]) -> None:
    with pytest.raises(UnreadError, match="the engine's tokens are not known"):
        vllm_messages(recorded["body"], None)


def test_tools_that_come_and_go_are_not_read() -> None:
    change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}
    messages = [{"role": "user", "content": "x"}, {"role": "system", "content": [change]}]
    for merges in (False, True):
        with pytest.raises(UnreadError, match="adds or removes a tool"):
            vllm_messages({"messages": messages}, TemplateTraits(merges, True, False))


class Renderer:
    """Knows the traits of one template, or fails."""

    def __init__(self, answer: TemplateTraits | Exception) -> None:
        self._answer = answer

    async def traits(self, template_id: str, _: float) -> TemplateTraits:
        if isinstance(self._answer, Exception):
            raise self._answer
        return {"base": self._answer}[template_id]


async def known(name: str, answer: TemplateTraits | Exception) -> TemplateTraits | None:
    models = ModelTable()
    models.add(Model("base"), ["alias"], ["adapter"])
    models.add(Model("ids-only"), [], [])
    return await traits_of(models, Renderer(answer), 1.0, name)  # type: ignore[arg-type]


async def test_a_templates_traits_are_found_by_every_name_of_its_model() -> None:
    traits = TemplateTraits(True, False, False)
    for name in ("base", "alias", "adapter", "base:other"):
        assert await known(name, traits) == traits
    for name in ("unknown", "ids-only", ""):
        assert await known(name, traits) is None


@pytest.mark.parametrize("kind", [RenderTimeoutError, RenderCrashedError, FullError, ClosedError])
async def test_a_template_that_cannot_be_tried_out_now_has_none(kind: type[Exception]) -> None:
    assert await known("base", kind("not now")) is None
