"""Turns bodies of Anthropic messages and of OpenAI responses into the chats that SGLang makes of them.

Follows SGLang 0.5.23, `srt/entrypoints/anthropic/serving.py` (`_convert_to_chat_completion_request`) and
`srt/entrypoints/openai/serving_responses.py` (`_construct_input_messages`). What SGLang does with
thinking, reasoning, tools and several system messages depends on the model, and it joins the parts of a
content in another way than this router's chats: only chats of plain texts are read.
"""

from collections.abc import Mapping
from typing import Any

from warmpath.prefixstore.chats.conversation import BILLING_HEADER
from warmpath.router.inference_api.chats.vllm_responses import begun_response
from warmpath.router.inference_api.request import (
    MadeChat,
    list_of,
    not_allowed,
    not_exact,
    object_of,
    text_of,
)

NOT_IN_RESPONSES = (
    *("tools", "reasoning", "previous_response_id", "previous_input_messages", "prompt"),
    "chat_template_kwargs",
)


def sglang_messages(body: Mapping[str, Any], _: object) -> MadeChat:
    """Return the chat (`MadeChat`) for the body of an Anthropic message. Raises UnreadError."""
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


def sglang_responses(body: Mapping[str, Any], _: object) -> MadeChat:
    """Return the chat (`MadeChat`) for the body of an OpenAI response. Raises UnreadError."""
    messages = begun_response(body, NOT_IN_RESPONSES)
    given = body.get("input")
    items = (
        [{"role": "user", "content": given}] if isinstance(given, str) else list_of(given, "input")
    )
    for item in items:
        messages.append(_item(object_of(item, "input"), messages))
    if messages and messages[-1]["role"] == "assistant":
        raise not_exact("the last message is the assistant's")
    return messages, {name: body.get(name) for name in ("cache_salt", "extra_key")}


def _item(item: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    if item.get("type", "message") != "message" or role not in ("user", "assistant", "system"):
        raise not_exact("an item is no message of the user, the assistant or the system")
    if role == "system" and before:
        raise not_exact("a system message stands among the others")
    if role == "assistant" and before and before[-1]["role"] == "assistant":
        raise not_exact("the assistant has several messages in a row")
    if isinstance(content, list):
        if len(content) != 1 or object_of(content[0], "content").get("type") not in (
            *("input_text", "output_text", "text"),
        ):
            raise not_exact("a content is more than one text")
        content = text_of(content[0], "text")
    if not isinstance(content, str):
        raise not_exact("a message has no text")
    return {"role": role, "content": content}
