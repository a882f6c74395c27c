"""A tokenizer's folder: what is read of it, and how it is refused."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from warmpath.lab.simworker.server.text import FolderText, TextError
from warmpath.prefixstore.chats.chat import ModelTemplate
from warmpath.prefixstore.chats.chat_request import chat_of
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.prefixstore.chats.template import ChatTemplate

TEMPLATES = Path(__file__).parents[3] / "prefixstore" / "templates"

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    tokenizer = (model_folder / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    return tmp_path


def configure(folder: Path, **config: Any) -> FolderText:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return FolderText(folder)


def test_special_tokens_are_known_to_templates_however_they_are_written(folder: Path) -> None:
    template = "{{ bos_token }}{{ messages[0]['content'] }}"
    plain = configure(folder, chat_template=template, bos_token="<s>")
    full = configure(folder, chat_template=template, bos_token={"content": "<s>", "lstrip": False})
    none = configure(folder, chat_template=template)
    assert full.render(HI, {}) == plain.render(HI, {}) != none.render(HI, {})


def with_tools() -> list[dict[str, Any]]:
    """Return bodies with tools or tool calls that vLLM was asked (`tests/vllm/record_chats.py`)."""
    lines = (TEMPLATES.parent / "vllm_chats.jsonl").read_text(encoding="utf-8").splitlines()
    bodies = [recorded["body"] for line in lines if "body" in (recorded := json.loads(line))]
    return [
        body
        for body in bodies
        if body.get("tools") or any(message.get("tool_calls") for message in body["messages"])
    ]


NOON = datetime(2026, 7, 26, 12, tzinfo=UTC)

WEATHER = {
    "type": "function",
    "function": {
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}, "city": {}}},
        "name": "weather",
        "description": "What is it like outside? Où?",
    },
}


@pytest.mark.parametrize("template", ["qwen-2.5.jinja", "qwen-3.jinja", "llama-3.1.jinja"])
def test_tools_become_the_tokens_that_the_router_makes_of_them(folder: Path, template: str) -> None:
    source = (TEMPLATES / template).read_text(encoding="utf-8")
    configure(folder, chat_template=source, bos_token="<s>")
    worker = FolderText(folder, clock=lambda: NOON)
    router = ChatTemplate(ModelTemplate(source, {"bos_token": "<s>"}), lambda: NOON)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    compared = 0
    for body in (*with_tools(), {"messages": HI, "tools": [WEATHER, WEATHER]}):
        if any(not isinstance(one.get("content"), str) for one in body["messages"]):
            continue
        try:
            text = router.render(chat_of(body))
        except TemplateError:
            continue  # no template takes everything
        assert worker.render(body["messages"], body) == (
            tokenizer.encode(text, add_special_tokens=False).ids
        ), body
        compared += 1
    assert compared > 5


@pytest.mark.parametrize("tools", [[], "none", [1], [{"function": {}}], [{"type": "function"}]])
def test_tools_that_are_none_are_refused(folder: Path, tools: Any) -> None:
    worker = configure(folder, chat_template="{{ tools | tojson }}")
    with pytest.raises(TextError, match="tools"):
        worker.render(HI, {"tools": tools})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json: Model missing"),
        ("tokenizer.json", "{", "tokenizer.json: "),
        ("tokenizer_config.json", "{", "tokenizer_config.json: Expecting"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: is not a JSON object"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "the chat template is not valid"),
        ("chat_template.jinja", "{{", "the chat template is not valid"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(folder: Path, name: str, text: str, message: str) -> None:
    configure(folder)
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        FolderText(folder)
