"""Chats are read as vLLM reads them: `vllm_chats.jsonl` is a recording (`tests/vllm/record_chats.py`)."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from warmpath.prefixstore.chats.chat import ModelTemplate
from warmpath.prefixstore.chats.chat_request import chat_of
from warmpath.prefixstore.chats.content_format import takes_parts
from warmpath.prefixstore.chats.conversation import Conversation
from warmpath.prefixstore.chats.jinja_template import JinjaTemplate
from warmpath.prefixstore.chats.template import ChatTemplate, _without_developers
from warmpath.prefixstore.chats.traits import traits_of

HERE = Path(__file__).parents[1]
RECORDED = [
    json.loads(line)
    for line in (HERE / "vllm_chats.jsonl").read_text(encoding="utf-8").splitlines()
]
TEMPLATES = [one for one in RECORDED if "template" in one]
BODIES = [one for one in RECORDED if "body" in one]


def named(recorded: dict[str, Any]) -> str:
    return json.dumps(recorded["body"])[:60]


@pytest.mark.parametrize("recorded", TEMPLATES, ids=str)
def test_vllm_hands_a_template_the_same_form_of_contents(recorded: dict[str, str]) -> None:
    source = (HERE / "templates" / recorded["template"]).read_text(encoding="utf-8")
    tree = JinjaTemplate(source, lambda: datetime.now(UTC)).tree
    assert takes_parts(tree) == (recorded["format"] == "openai")


@pytest.mark.parametrize("recorded", TEMPLATES, ids=str)
def test_vllm_finds_the_same_templates_to_want_the_system_message_first(
    recorded: dict[str, str],
) -> None:
    source = (HERE / "templates" / recorded["template"]).read_text(encoding="utf-8")
    template = ChatTemplate(ModelTemplate(source, {"bos_token": "<s>"}), lambda: datetime.now(UTC))
    assert traits_of(template).wants_system_first == recorded["wants_system_first"]


@pytest.mark.parametrize(
    "recorded",
    BODIES,
    ids=named,
)
def test_vllm_hands_a_template_the_same_chat(recorded: dict[str, Any]) -> None:
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


@pytest.mark.parametrize(
    "recorded",
    BODIES,
    ids=named,
)
def test_vllm_gives_a_template_the_same_variables(recorded: dict[str, Any]) -> None:
    chat = chat_of(recorded["body"])
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
