"""Turns the body of an OpenAI response into the chat that SGLang makes of it.

Follows SGLang 0.5.23, `srt/entrypoints/openai/serving_responses.py` (`_construct_input_messages`).
What SGLang does with several system messages depends on the model, and it writes tools and reasoning in
another way than this router's chats: only chats of plain texts are read.
"""

from collections.abc import Mapping
from typing import Any

from warmpath.router.inference_api.request import list_of, not_exact, object_of, text_of

UNREAD = (
    *("tools", "reasoning", "previous_response_id", "previous_input_messages", "prompt"),
    "chat_template_kwargs",
)


def sglang_responses(
    body: Mapping[str, Any], _: object
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the chat's messages and the other fields of its body. Raises UnreadError."""
    for name in UNREAD:
        if body.get(name):
            raise not_exact(f"{name} is given")
    if body.get("truncation", "disabled") not in ("disabled", None):
        raise not_exact("the engine is to cut the prompt to its longest one")
    messages: list[dict[str, Any]] = []
    if instructions := text_of(dict(body), "instructions"):
        messages.append({"role": "system", "content": instructions})
    given = body.get("input")
    items = (
        [{"role": "user", "content": given}] if isinstance(given, str) else list_of(given, "input")
    )
    for item in items:
        messages.append(_message(object_of(item, "input"), messages))
    if messages and messages[-1]["role"] == "assistant":
        raise not_exact("the last message is the assistant's")
    return messages, {name: body.get(name) for name in ("cache_salt", "extra_key")}


def _message(item: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
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
