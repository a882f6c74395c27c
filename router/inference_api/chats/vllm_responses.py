"""Turns the body of an OpenAI response into the chat that vLLM makes of it.

Follows vLLM 0.32, `entrypoints/openai/responses/utils.py` (`construct_input_messages`,
`construct_tool_dicts`) and `protocol.py` (`input_item_parsing`, `build_chat_params`,
`build_tok_params`): unlike a chat, a response gets the tokenizer's special tokens around the rendered
text. What earlier responses held is only in the engine's memory, and custom tools are rewritten: such a
body is not read.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.router.inference_api.request import (
    MadeChat,
    list_of,
    not_allowed,
    not_exact,
    object_of,
    text_of,
)

ROLES = ("user", "system", "developer")
HIDDEN_TOOLS = re.compile(
    r"(web_search|file_search|computer|code_interpreter|image_generation|local_shell|shell|mcp)"
)
"""Matches the beginnings of the types of tools that no template sees."""
UNFINISHED = ("in_progress", "incomplete")

Message = dict[str, Any]


def vllm_responses(body: Mapping[str, Any], traits: TemplateTraits | None) -> MadeChat:
    """Return the chat (`MadeChat`) for the body of an OpenAI response. Raises UnreadError.

    `traits` are those of the model's chat template; None: it is not known.
    """
    messages = begun_response(body, ("previous_response_id", "previous_input_messages"))
    if body.get("prompt") is not None:
        raise not_allowed("prompt, a template, is given")
    given = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}], _fields(body, continues=False)
    items = [object_of(item, "input") for item in list_of(given, "input")]
    has_calls = any(item.get("type") == "function_call" for item in items)
    if has_calls and (traits is None or traits.writes_calls_as_given):
        # A response's calls have their name before the arguments; a chat's have it behind them.
        raise not_exact("a tool's call stands among the items")
    for item in items:
        _add(messages, item)
    if not messages:
        raise not_allowed("input is empty")
    return messages, _fields(body, continues=_continues(items))


def begun_response(body: Mapping[str, Any], unread: Iterable[str]) -> list[Message]:
    """Return the message with a response's instructions, if any, with which its chat begins.

    Raises UnreadError if one of the fields `unread` is given, or if the engine is to cut the prompt.
    """
    for name in unread:
        if body.get(name):
            raise not_exact(f"{name} is given")
    if body.get("truncation", "disabled") not in ("disabled", None):
        raise not_exact("the engine is to cut the prompt to its longest one")
    instructions = text_of(body, "instructions")
    return [{"role": "system", "content": instructions}] if instructions else []


def _fields(body: Mapping[str, Any], *, continues: bool) -> dict[str, Any]:
    reasoning = object_of(body.get("reasoning") or {}, "reasoning")
    return {
        "tools": _tools(body.get("tools")),
        "reasoning_effort": reasoning.get("effort"),
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "cache_salt": body.get("cache_salt"),
        "add_special_tokens": True,
    }


def _continues(items: list[Message]) -> bool:
    last = items[-1] if items else {}
    return (
        last.get("type", "message") in ("message", "reasoning") and last.get("status") in UNFINISHED
    )


def _add(messages: list[Message], item: Message) -> None:
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    kind, role = item.get("type"), item.get("role")
    if kind == "function_call":
        if item.get("namespace"):
            raise not_exact("a tool's call has a namespace")
        call = _call(item)
        if last is None:
            messages.append({"role": "assistant", "tool_calls": [call]})
        else:
            last.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        _add_to(messages, last, "reasoning", _reasoning(item))
    elif kind == "function_call_output":
        output = _content(item.get("output"))
        call_id = text_of(item, "call_id")
        messages.append({"role": "tool", "content": output, "tool_call_id": call_id})
    elif kind not in (None, "message"):
        raise not_exact("an item is neither a message, a function's call or output, nor reasoning")
    elif role == "assistant":
        if isinstance(item.get("content"), str) and "id" in item:
            raise not_exact(
                "an assistant's text has an id: the engine takes it for a list of parts"
            )
        _add_to(messages, last, "content", _answer(item.get("content")))
    elif role in ROLES:
        if item.get("tools") is not None:
            raise not_exact("a message has tools of its own")
        message = {"role": role, "content": _content(item.get("content"))}
        messages.append(message | {key: item[key] for key in ("name", "task") if key in item})
    else:
        raise not_allowed("an item has an unknown role")


def _add_to(messages: list[Message], last: Message | None, name: str, text: str) -> None:
    if last is not None and last.get(name) is None:
        last[name] = text
    else:
        messages.append({"role": "assistant", name: text})


def _call(item: Message) -> Message:
    texts = {name: item.get(name) for name in ("call_id", "name", "arguments")}
    if not all(isinstance(text, str) for text in texts.values()):
        raise not_allowed("a tool's call has no call_id, name or arguments")
    function = {"name": texts["name"], "arguments": texts["arguments"]}
    return {"id": texts["call_id"], "type": "function", "function": function}


def _reasoning(item: Message) -> str:
    if item.get("encrypted_content"):
        raise not_allowed("a reasoning is encrypted")
    summary = list_of(item.get("summary"), "summary")
    parts = item.get("content") or summary
    if not parts:
        return ""
    return text_of(object_of(list_of(parts, "content")[0], "content"), "text") or ""


def _answer(content: Any) -> str:
    """Return an assistant's text: the engine takes the first part alone."""
    if isinstance(content, str):
        return content
    parts = [object_of(part, "content") for part in list_of(content, "content")]
    if not parts or parts[0].get("type") not in ("output_text", "input_text"):
        raise not_exact("an assistant's content has no text")
    if any(part.get("annotations", []) != [] or part.get("logprobs") for part in parts):
        # If its request model does not take one of them, the engine reads the message otherwise.
        raise not_exact("an assistant's text has annotations or logprobs")
    text = text_of(parts[0], "text")
    if text is None:
        raise not_allowed("a part has no text")
    return text


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_part(object_of(part, "content")) for part in list_of(content, "content")]


def _part(part: Message) -> Message:
    kind = part.get("type")
    if kind == "input_text" and isinstance(part.get("text"), str):
        return part
    if kind == "input_image":
        # The engine's request model puts the fields that it declares first.
        first = {key: part[key] for key in ("file_id",) if key in part}
        return {"detail": part.get("detail", "auto"), **first, **part}
    raise not_exact("a part of a content is neither a text nor an image")


def _tools(given: Any) -> list[dict[str, Any]] | None:
    tools = []
    for tool in list_of(given or [], "tools"):
        kind = object_of(tool, "tools").get("type")
        if kind == "function":
            keys = ("name", "description", "parameters", "strict", "defer_loading")
            function = {key: tool[key] for key in keys if tool.get(key) is not None}
            tools.append({"type": "function", "function": function})
        elif not (isinstance(kind, str) and HIDDEN_TOOLS.match(kind)):
            raise not_exact("a tool is neither a function nor one that templates do not see")
    if given and not tools:
        raise not_exact("tools has nothing that a template sees")
    return tools or None
