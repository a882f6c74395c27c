"""The chat template of simulated models, as the router and the simulated engines render it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from warmpath.lab.local.tokenizer import TEMPLATE, write_tokenizer
from warmpath.lab.simworker.server.text import FolderText
from warmpath.prefixstore.chats.chat import Chat, ModelTemplate
from warmpath.prefixstore.chats.template import ChatTemplate

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    "said",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
    ],
)
def test_a_message_without_content_has_an_empty_text(tmp_path: Path, said: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Look."}, said]
    text = "user: Look.\nassistant: \nassistant:"
    router = ChatTemplate(ModelTemplate(TEMPLATE), lambda: datetime.now(UTC))
    assert router.render(Chat(messages)) == text
    write_tokenizer(tmp_path)
    engine = FolderText(tmp_path)
    assert engine.detokenize(engine.render(messages, {})) == text
