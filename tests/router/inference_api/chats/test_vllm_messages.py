"""Messages that depend on the chat template become the chats that vLLM makes of them.

`vllm_messages.jsonl` is a recording of vLLM's own conversion (`tests/vllm/record_messages.py`).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.prefixstore.chats.conversation import Conversation
from warmpath.router.inference_api.chats.vllm_messages import vllm_messages
from warmpath.router.inference_api.request import UnreadError

RECORDED = [
    json.loads(line)
    for line in Path(__file__)
    .with_name("vllm_messages.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
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
