"""Turns the body of an Anthropic message into the chat that vLLM makes of it.

Follows vLLM 0.32, `entrypoints/anthropic/serving.py` (`to_chat_completion_request`) and `protocol.py`.
Two things depend on the model's chat template: a system message among the others, which is merged into
the first one for templates that want it first, and thinking that is disabled, which becomes one of two
efforts. Without knowledge of the template, a body with one of them is not read.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.prefixstore.chats.conversation import BILLING_HEADER
from warmpath.prefixstore.chats.traits import EFFORTS
from warmpath.router.inference_api.request import (
    MadeChat,
    list_of,
    not_allowed,
    not_exact,
    object_of,
    text_of,
)

Block = dict[str, Any]


def vllm_messages(body: Mapping[str, Any], traits: TemplateTraits | None) -> MadeChat:
    """Return the chat (`MadeChat`) for the body of an Anthropic message. Raises UnreadError.

    `traits` are those of the model's chat template; None: it is not known.
    """
    given = [object_of(one, "messages") for one in list_of(body.get("messages"), "messages")]
    systems = [_system_text(one.get("content")) for one in given if one.get("role") == "system"]
    if systems and traits is None:
        raise not_exact("a system message stands among the others")
    merges = traits is not None and traits.wants_system_first
    system = _system_texts(body.get("system"))
    if merges:
        system += [text for text in systems if text]
    messages = [{"role": "system", "content": "".join(system)}] if system else []
    for one in given:
        if one.get("role") != "system":
            messages += _messages(one)
        elif not merges and (text := _system_text(one.get("content"))):
            messages.append({"role": "system", "content": text})
    if not messages:
        raise not_allowed("messages are empty")
    fields = {
        "tools": _tools(body.get("tools")),
        "reasoning_effort": _effort(body, traits),
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "cache_salt": body.get("cache_salt"),
    }
    return messages, fields


def _system_texts(given: Any) -> list[str]:
    if not given or isinstance(given, str):
        return [given] if given else []
    texts = []
    for block in list_of(given, "system"):
        kind = object_of(block, "system").get("type")
        if kind in ("tool_addition", "tool_removal"):
            raise not_exact("a system message adds or removes a tool")
        text = text_of(block, "text")
        if kind == "text" and text and not text.startswith(BILLING_HEADER):
            texts.append(text)
    return texts


def _system_text(content: Any) -> str:
    if isinstance(content, str) and content.startswith(BILLING_HEADER):
        return ""
    return "".join(_system_texts(content))


def _messages(given: Block) -> list[dict[str, Any]]:
    """Return the messages that one message becomes: results of tools have messages of their own."""
    role, content = given.get("role"), given.get("content")
    if role not in ("user", "assistant"):
        raise not_allowed("a message has another role than user and assistant")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for block in list_of(content, "content"):
        kind = object_of(block, "content").get("type")
        if kind == "text":
            if text := text_of(block, "text"):
                parts.append({"type": "text", "text": text})
        elif kind == "image":
            if source := block.get("source"):
                parts.append(_image(object_of(source, "source")))
        elif kind == "thinking":
            if (thought := text_of(block, "thinking")) is not None:
                reasoning.append(thought)
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind == "tool_result" and role == "user":
            results += _results(block)
        elif kind == "tool_result":
            raise not_exact("an assistant's message has the result of a tool")
        elif kind not in ("redacted_thinking", "tool_reference"):
            raise not_allowed("a block of a message has an unknown type")
    found: dict[str, Any] = {"role": role}
    if reasoning:
        found["reasoning"] = "".join(reasoning)
    if calls:
        found["tool_calls"] = calls
    if parts:
        is_text = len(parts) == 1 and parts[0]["type"] == "text"
        found["content"] = parts[0]["text"] if is_text else parts
    return results if role == "user" and not parts else [*results, found]


def _image(source: Block) -> dict[str, Any]:
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: Block) -> dict[str, Any]:
    name = text_of(block, "id")
    if not name:
        raise not_exact("a tool's call has no id: the engine takes the time for it")
    arguments = object_of(block.get("input") or {}, "input")
    function = {"name": text_of(block, "name") or "", "arguments": json.dumps(arguments)}
    return {"id": name, "type": "function", "function": function}


def _results(block: Block) -> Iterator[dict[str, Any]]:
    content = block.get("content")
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    references: list[dict[str, Any]] = []
    if isinstance(content, str):
        texts.append(content)
    for item in content if isinstance(content, list) else ():
        kind = object_of(item, "content").get("type")
        if kind == "text":
            texts.append(text_of(item, "text") or "")
        elif kind == "image":
            image = _image(object_of(item.get("source", {}), "source"))
            images += [image] if image["image_url"]["url"] else []
        elif kind == "tool_reference" and (name := item.get("tool_name") or item.get("name")):
            references.append({"type": "tool_reference", "name": name})
    call = {"tool_call_id": text_of(block, "tool_use_id") or ""}
    yield {"role": "tool", **call, "content": "\n".join(texts)}
    if images:
        yield {"role": "user", "content": images}
    if references:
        yield {"role": "tool", **call, "content": references}


def _tools(given: Any) -> list[dict[str, Any]] | None:
    if given is None:
        return None
    tools = [_tool(object_of(tool, "tools")) for tool in list_of(given, "tools")]
    if not tools:
        raise not_exact("tools is an empty list, which a chat's body cannot have")
    return tools


def _tool(given: Block) -> dict[str, Any]:
    schema = given.get("input_schema")
    if not isinstance(schema, dict):
        raise not_allowed("a tool has no input_schema")
    optional = {key: given.get(key) for key in ("strict", "defer_loading")}
    return {
        "type": "function",
        "function": {
            "name": given.get("name"),
            "description": given.get("description"),
            "parameters": schema if "type" in schema else {**schema, "type": "object"},
            **{key: value for key, value in optional.items() if value is not None},
        },
    }


def _effort(body: Mapping[str, Any], traits: TemplateTraits | None) -> Any:
    thinking = body.get("thinking")
    if thinking is not None and object_of(thinking, "thinking").get("type") == "disabled":
        if traits is None:
            raise not_exact("thinking is disabled")
        return "none" if traits.heeds_no_effort else "low"
    output = object_of(body.get("output_config") or {}, "output_config")
    effort = output.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise not_allowed("output_config.effort is unknown")
    return effort
