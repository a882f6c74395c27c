"""Messages of a request, brought into the form that the engine hands its templates.

Follows vLLM 0.32, `renderers/chat_utils.py` (`_parse_chat_message_content`, `_postprocess_messages`)
and what its request model makes of tool calls (`entrypoints/openai/chat_completion/protocol.py`: the
declared fields come first, in their order). A message that the engine would refuse may pass here: then
nobody is served from what is scored.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefixstore.chats.jinja_template import TemplateError

TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Types of parts that are text, and the key that holds it."""

MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
"""Types of parts that are media, and how templates and `placeholders` call them."""

PART_KEYS = frozenset(
    (
        *("audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil"),
        *("image_url", "input_audio", "name", "prompt_cache_breakpoint", "refusal", "text"),
        *("thinking", "type", "uuid", "video_embeds", "video_url"),
    )
)
"""What the engine takes out of a part; templates see what is not among these."""

BILLING_HEADER = "x-anthropic-billing-header"
"""A line of Claude Code's that differs in every request; the engine drops it from system texts."""


class Conversation:
    """Turns messages into a template's, one request long: media are numbered throughout."""

    def __init__(self, *, parts: bool, placeholders: Mapping[str, str]) -> None:
        """`parts`: the template takes contents as lists; else as texts."""
        self._parts = parts
        self._placeholders = placeholders
        self._media: Counter[str] = Counter()

    def messages(self, given: Sequence[Any]) -> list[dict[str, Any]]:
        """Return a template's messages. Raises TemplateError, which names the field."""
        return [
            # As `apply_chat_template` does: templates test for a key, not for null.
            {key: value for key, value in message.items() if value is not None}
            for position, one in enumerate(given)
            for message in (self._message(one, f"messages[{position}]"),)
        ]

    def _message(self, given: Any, field: str) -> dict[str, Any]:
        if not isinstance(given, dict) or not isinstance(given.get("role"), str):
            raise TemplateError("is no object with a role", field)
        role = given["role"]
        parts = _parts(given.get("content"), f"{field}.content")
        if role == "system":
            parts = list(_without_billing(parts))
        message = {"role": role, "content": self._content(parts, f"{field}.content")}
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
                f"the chat template takes text, and what the engine writes into it for {medium} is "
                "not among the model's placeholders",
                field,
            )
        self._media[medium] += 1
        return text.replace("{i}", str(self._media[medium]))

    @staticmethod
    def _part(part: Any, field: str) -> dict[str, Any] | None:
        """Return a part as templates take it, None for one without content."""
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
            raise TemplateError("is no text", f"{field}.{TEXTS[kind]}")
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
    """Put the placeholders that the texts do not hold already before them."""
    text = "\n".join(texts)
    missing = []
    for placeholder, count in Counter(
        one for several in media.values() for one in several if one
    ).items():
        written = text.count(placeholder)
        if written > count:
            raise TemplateError(f"holds {placeholder!r} more often than media", field)
        missing += [placeholder] * (count - written)
    return "\n".join([*missing, text] if text else missing)


def _joined(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a tool's result as a text where it is nothing else: few templates take parts there."""
    if isinstance(content, str) or any(part["type"] != "text" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def _of_assistant(given: Mapping[str, Any], field: str) -> dict[str, Any]:
    """Return what only an assistant's message has."""
    found: dict[str, Any] = {}
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise TemplateError("is no list", f"{field}.tool_calls")
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
        raise TemplateError("is no object", field)
    function = call.get("function")
    if call.get("type", "function") != "function" or not isinstance(function, dict):
        raise TemplateError("is no call of a function", field)
    arguments = _arguments(function.get("arguments"), f"{field}.function.arguments")
    called = _ordered({**function, "arguments": arguments}, "arguments", "name")
    return _ordered({**call, "function": called}, "id", "function", "type")


def _arguments(given: Any, field: str) -> dict[str, Any]:
    """Return a call's arguments as an object; an empty one where they are none, as the engine does."""
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            return {}
        except (ValueError, RecursionError) as error:
            raise TemplateError(f"cannot be read: {error}", field) from error
    return given if isinstance(given, dict) else {}


def _developer_tools(tools: Any) -> Any:
    """Order a developer's tools as the engine's request model declares them.

    It declares them for messages of its own only; where a tool is not what it takes there, the message
    passes as OpenAI's, which knows nothing of tools and leaves them as they are.
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
