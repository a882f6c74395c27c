"""Converts a request's messages into the form that vLLM passes to templates.

Follows vLLM 0.32, `renderers/chat_utils.py` (`_parse_chat_message_content`, `_postprocess_messages`)
and how its request model reorders tool calls (`entrypoints/openai/chat_completion/protocol.py`: the
declared fields come first, in their order). A message that the engine would refuse may pass here: the
engine then refuses the request itself.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from warmpath.prefixstore.chats.jinja_template import TemplateError

TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of parts that are text; each with the key of the part that holds the text."""

MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
"""Types of parts that are media; each with its name in templates and in `placeholders`."""

PART_KEYS = frozenset(
    (
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil"),
        *("image_url", "input_audio", "name", "prompt_cache_breakpoint", "refusal", "text"),
        *("thinking", "type", "uuid", "video_embeds", "video_url"),
    )
)
"""Keys that the engine removes from a part; templates see all other keys."""

BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a line that Claude Code sends, different in each request; vLLM drops it from system texts."""


class Conversation:
    """Converts the messages of one request; it numbers the media over all of them."""

    def __init__(self, *, parts: bool, placeholders: Mapping[str, str]) -> None:
        """`parts`: the template expects contents as lists of parts; otherwise as strings."""
        self._parts = parts
        self._placeholders = placeholders
        self._media: defaultdict[str, int] = defaultdict(int)

    def messages(self, given: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the messages for a template. Raises TemplateError, which names the field."""
        messages = [self._message(one, f"messages[{at}]") for at, one in enumerate(given)]
        # Null values are left out as in `apply_chat_template`: templates test for a key.
        return [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]

    def _message(self, given: Any, field: str) -> dict[str, Any]:
        if not isinstance(given, dict) or not isinstance(given.get("role"), str):
            raise TemplateError("is not an object with a role", field)
        role, content = given["role"], given.get("content")
        if not isinstance(content, str) or content.startswith(BILLING_HEADER):
            parts = _parts(content, f"{field}.content")
            if role == "system":
                parts = list(_without_billing(parts))
            content = self._content(parts, f"{field}.content")
        elif self._parts:
            content = [{"type": "text", "text": content}]
        message = {"role": role, "content": content}
        if role == "assistant":
            message |= _of_assistant(given, field)
        elif role == "tool":
            message["tool_call_id"] = given.get("tool_call_id")
            message["content"] = _joined(message["content"])
        for key in ("name", "task"):
            if isinstance(given.get(key), str):
                message[key] = given[key]
        if role == "developer":
            message["tools"] = _developer_tools(given.get("tools"))
        return message

    def _content(self, parts: Sequence[Any], field: str) -> str | list[dict[str, Any]]:
        seen = [self._part(part, f"{field}[{at}]") for at, part in enumerate(parts)]
        found = [part for part in seen if part is not None]
        if self._parts:
            return found
        texts = [text for part in found if (text := part.get("text") or part.get("name"))]
        media: dict[str, list[str]] = {}
        for at, part in enumerate(seen):
            if part is not None and part["type"] in MEDIA.values():
                placeholder = self._placeholder(part["type"], f"{field}[{at}]")
                media.setdefault(part["type"], []).append(placeholder)
        return _with_placeholders(media, texts, field) if media else "\n".join(texts)

    def _placeholder(self, medium: str, field: str) -> str:
        text = self._placeholders.get(medium)
        if text is None:
            raise TemplateError(
                f"the chat template takes text, and the model's placeholders have no text for {medium}",
                field,
            )
        self._media[medium] += 1
        return text.replace("{i}", str(self._media[medium]))

    @staticmethod
    def _part(part: Any, field: str) -> dict[str, Any] | None:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if not isinstance(part, dict):
            raise TemplateError("is neither an object nor a text", field)
        kind = part.get("type")
        if kind is None or (part.get("uuid") is not None and kind not in MEDIA):
            kind = next((kind for kind in (*MEDIA, "tool_reference") if kind in part), None)
        if not isinstance(kind, str):
            raise TemplateError("is missing", f"{field}.type")
        extra = {key: value for key, value in part.items() if key not in PART_KEYS}
        if kind in MEDIA:
            return {"type": MEDIA[kind], **extra}
        if kind == "tool_reference":
            return {"type": kind, "name": part.get("name")}
        if kind not in TEXTS:
            raise TemplateError(f"{kind!r} is not supported", f"{field}.type")
        text = part.get(TEXTS[kind])
        if text is None and kind in ("text", "refusal"):
            return None
        if not isinstance(text, str):
            raise TemplateError("is not a text", f"{field}.{TEXTS[kind]}")
        return {"type": "text", "text": text, **extra}


def _parts(content: Any, field: str) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise TemplateError("is neither a text nor a list of parts", field)
    return content


def _without_billing(parts: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str) or not text.startswith(BILLING_HEADER):
            yield part
        elif rest := text.partition("\n")[2]:
            yield rest if isinstance(part, str) else {**part, "text": rest}


def _with_placeholders(media: Mapping[str, list[str]], texts: Sequence[str], field: str) -> str:
    text = "\n".join(texts)
    missing = []
    for placeholder, count in Counter(
        one for several in media.values() for one in several if one
    ).items():
        written = text.count(placeholder)
        if written > count:
            raise TemplateError(f"has {placeholder!r} more often than it has media", field)
        missing += [placeholder] * (count - written)
    return "\n".join([*missing, text] if text else missing)


def _joined(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a tool's result as a string if all its parts are text: few templates expect parts."""
    if isinstance(content, str) or any(part["type"] != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _of_assistant(given: Mapping[str, Any], field: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise TemplateError("is not a list", f"{field}.tool_calls")
    if calls:
        found["tool_calls"] = [
            _tool_call(call, f"{field}.tool_calls[{at}]") for at, call in enumerate(calls)
        ]
    reasoning = given.get("reasoning")
    if reasoning is None:
        reasoning = given.get("reasoning_content")
    return {**found, "reasoning": reasoning, "reasoning_content": reasoning}


def _tool_call(call: Any, field: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise TemplateError("is not an object", field)
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise TemplateError("is not a call of a function", field)
    arguments = _arguments(function.get("arguments"), f"{field}.function.arguments")
    called = _ordered({**function, "arguments": arguments}, "arguments", "name")
    return _ordered({**call, "function": called}, "id", "function", "type")


def _arguments(given: Any, field: str) -> dict[str, Any]:
    """Return a call's arguments, or, like vLLM, an empty object if they are not an object."""
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            return {}
        except (ValueError, RecursionError) as error:
            raise TemplateError(f"cannot be read: {error}", field) from error
    return given if isinstance(given, dict) else {}


def _developer_tools(tools: Any) -> Any:
    """Return a developer message's tools with their fields in the order of vLLM's request model.

    vLLM first reads the message with its own model, which declares tools. If a tool does not fit, it
    reads the message with OpenAI's model, which leaves tools as they are.
    """
    if not isinstance(tools, list) or not all(map(_is_tool, tools)):
        return tools
    keys = ("name", "description", "parameters", "strict")
    return [
        _ordered({**tool, "function": _ordered(tool["function"], *keys)}, "function", "type")
        for tool in tools
    ]


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return (
        isinstance(function, dict)
        and tool.get("type") == "function"
        and isinstance(function.get("name"), str)
    )


def _ordered(value: Mapping[str, Any], *first: str) -> dict[str, Any]:
    return {**{key: value[key] for key in first if key in value}, **value}
