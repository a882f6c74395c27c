"""Turns the body of an OpenAI response into the body of the chat that vLLM makes of it.

Source: `vllm/entrypoints/openai/responses/{protocol,utils}.py` of 0.32. The parts of a content are
joined by line breaks, as vLLM joins them for templates that take texts. Media, earlier responses, and
items that vLLM rewrites are refused. A template that writes a tool's call as it comes has its arguments
before its name here, and behind it in vLLM.
"""

import re
from typing import Any

from warmpath.lab.simworker.api.errors import bad
from warmpath.lab.simworker.api.fields import Fields
from warmpath.lab.simworker.api.inference.answer import BOTH, NOTHING, refuse

REFUSED = BOTH | {
    "background": NOTHING,
    "include": NOTHING,
    "previous_input_messages": NOTHING,
    "previous_response_id": NOTHING,
    "prompt": (None,),
    "tool_choice": (None, "none", "auto"),
    "top_logprobs": (None, 0),
    "truncation": (None, "disabled"),
}
HIDDEN_TOOLS = re.compile(
    r"(web_search|file_search|computer|code_interpreter|image_generation|local_shell|shell|mcp)"
)
"""Begins the types of tools that no template sees."""


def response_chat(fields: Fields) -> dict[str, Any]:
    """Return the chat's body. Raises ApiError."""
    refuse(fields, REFUSED)
    refuse(fields.object("text"), {"format": (None, {"type": "text"})})
    messages: list[dict[str, Any]] = []
    if instructions := fields.text("instructions"):
        messages.append({"role": "system", "content": instructions})
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for at, item in enumerate(_objects(items, "input")):
        _add(messages, Fields(item), f"input[{at}]")
    names = ("model", "stream", "cache_salt", "chat_template_kwargs", "priority", "request_id")
    return {name: fields.get(name) for name in names} | {
        "max_output_tokens": fields.get("max_output_tokens"),
        "messages": messages,
        "tools": _tools(fields.get("tools")),
        "reasoning_effort": fields.object("reasoning").get("effort"),
        # Unlike a chat, a response gets the tokenizer's special tokens around the rendered text.
        "add_special_tokens": True,
    }


def _add(messages: list[dict[str, Any]], item: Fields, field: str) -> None:
    """Add an item to the messages; several items of an assistant become one message."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else {}
    kind, role = item.text("type", "message"), item.text("role")
    if item.get("status") in ("in_progress", "incomplete") and kind in ("message", "reasoning"):
        raise bad(f"{field}.status", "a simulated model goes on with no unfinished item")
    match kind, role:
        case "function_call", _ if not item.get("namespace"):
            if not last:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            function = {name: item.text(name) for name in ("name", "arguments")}
            call = {"id": item.text("call_id"), "type": "function", "function": function}
            last.setdefault("tool_calls", []).append(call)
        case "function_call_output", _:
            output = _content(item.get("output"), field)
            messages.append(
                {"role": "tool", "content": output, "tool_call_id": item.text("call_id")}
            )
        case "reasoning", _ if not item.get("encrypted_content"):
            _add_to(messages, last, "reasoning", _first_text(_thoughts(item), field))
        case "message", "assistant":
            _add_to(messages, last, "content", _answer(item, field))
        case "message", ("user" | "system" | "developer") if item.get("tools") is None:
            name = {"name": item.text("name")} if item.text("name") else {}
            content = _content(item.get("content"), field)
            messages.append({"role": role, "content": content} | name)
        case _:
            raise bad(field, f"a simulated model takes no such item ({kind}, {role or 'no role'})")


def _add_to(messages: list[dict[str, Any]], last: dict[str, Any], name: str, text: str) -> None:
    """Set a field of the assistant's last message, or of a new one if it is set there."""
    if not last or last.get(name):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    last[name] = text


def _thoughts(item: Fields) -> Any:
    return item.get("content") or item.get("summary") or [{"text": ""}]


def _answer(item: Fields, field: str) -> str:
    """Return an assistant's text: vLLM takes the first part alone."""
    content = item.get("content")
    if isinstance(content, str) and item.get("id") is None:
        return content
    if any(part.get("annotations") or part.get("logprobs") for part in _objects(content, field)):
        raise bad(field, "a simulated model takes neither annotations nor logprobs")
    return _first_text(content, field)


def _first_text(parts: Any, field: str) -> str:
    found = _objects(parts, field)
    text = found[0].get("text") if found else None
    if not isinstance(text, str):
        raise bad(field, "a text is needed")
    return text


def _content(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    parts = _objects(content, field)
    for part in parts:
        if part.get("type") != "input_text":
            raise bad(field, f"a simulated model takes no {part.get('type')} here")
    return "\n".join(Fields(part).text("text") for part in parts)


def _tools(given: Any) -> list[dict[str, Any]] | None:
    tools = []
    for tool in _objects(given or [], "tools"):
        kind = Fields(tool).text("type")
        if kind == "function":
            tools.append({"type": kind, "function": tool})
        elif not HIDDEN_TOOLS.match(kind):
            raise bad("tools", f"a simulated model has no tools of type {kind!r}")
    if given and not tools:
        raise bad("tools", "at least one is needed that templates see")
    return tools or None


def _objects(given: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise bad(field, "a list of objects is needed")
    return given
