"""Turns the body of an Anthropic message into the chat that SGLang makes of it.

Follows SGLang 0.5.23, `srt/entrypoints/anthropic/serving.py`
(`_convert_to_chat_completion_request`). What SGLang does with thinking, with tools and with a system
message among the others depends on the model, and it joins the parts of a content in another way than
this router's chats: only chats of plain texts are read.
"""

from collections.abc import Mapping
from typing import Any

from warmpath.prefixstore.chats.conversation import BILLING_HEADER
from warmpath.router.inference_api.request import (
    list_of,
    not_allowed,
    not_exact,
    object_of,
    text_of,
)


def sglang_messages(
    body: Mapping[str, Any], _: object
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the chat's messages and the other fields of its body. Raises UnreadError."""
    for name in ("thinking", "output_config", "tools"):
        if body.get(name):
            raise not_exact(f"{name} is given")
    messages = [_message(given) for given in list_of(body.get("messages"), "messages")]
    if messages and messages[-1]["role"] == "assistant":
        raise not_exact("the last message is the assistant's")
    return _system(body.get("system")) + messages, {}


def _system(given: Any) -> list[dict[str, Any]]:
    if not given or (isinstance(given, str) and not given.strip()):
        return []
    text = given
    if not isinstance(given, str):
        blocks = [object_of(block, "system") for block in list_of(given, "system")]
        texts = [text_of(block, "text") for block in blocks if block.get("type") == "text"]
        text = "\n".join(one for one in texts if one)
    if text.startswith(BILLING_HEADER):
        raise not_exact("the system prompt begins with a header that vLLM alone drops")
    return [{"role": "system", "content": text}] if text else []


def _message(given: Any) -> dict[str, Any]:
    message = object_of(given, "messages")
    role, content = message.get("role"), message.get("content")
    if role == "system":
        raise not_exact("a system message stands among the others")
    if role not in ("user", "assistant"):
        raise not_allowed("a message has another role than user and assistant")
    if isinstance(content, str):
        return {"role": role, "content": content}
    blocks = [object_of(block, "content") for block in list_of(content, "content")]
    if len(blocks) != 1 or blocks[0].get("type") != "text":
        raise not_exact("a content is more than one text")
    return {"role": role, "content": text_of(blocks[0], "text") or ""}
