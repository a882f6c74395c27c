"""Reads a chat request's JSON body as vLLM's request model does, into the template's input.

Follows vLLM 0.32, `entrypoints/openai/chat_completion/protocol.py` (`ChatCompletionsToolsParam`,
`build_chat_params`) and `renderers/params.py` (`merge_kwargs`). It checks less than vLLM: it refuses
only bodies that it could not render as vLLM would.
"""

from collections.abc import Mapping
from typing import Any

from warmpath.prefixstore.chats.chat import Chat
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.prefixstore.chats.template import RESERVED

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

TOOL = {"type": str, "function": dict, "defer_loading": bool}
FUNCTION = {
    "name": str,
    "description": str,
    "parameters": dict,
    "strict": bool,
    "defer_loading": bool,
}
OMITTED = ("strict", "defer_loading")
"""Fields that vLLM leaves out when they have no value; it writes the others as null."""

KINDS = {
    "messages": list,
    "continue_final_message": bool,
    "add_generation_prompt": bool,
    "chat_template_kwargs": dict,
    "reasoning_effort": str,
    "tools": list,
    "documents": list,
}
"""The kinds of a body's fields."""

Body = Mapping[str, Any]


def chat_of(body: Body) -> Chat:
    """Return the chat in a request body. Raises TemplateError, which names the field."""
    if body.get("chat_template") is not None:
        raise TemplateError("templates from requests are refused", "chat_template")
    if body.get("system") is not None:
        # Anthropic's Messages API has this field; the chat API would ignore it, to a sender's surprise.
        problem = "is not a field of the chat API; give it as a message whose role is system"
        raise TemplateError(problem, "system")
    for key, value in body.items():
        if value is not None and not isinstance(value, KINDS.get(key, object)):
            raise TemplateError(f"is not {_NAMES[KINDS[key]]}", key)
    messages = body.get("messages")
    if not messages:
        problem = "is missing" if messages is None else "is empty; at least one message is needed"
        raise TemplateError(problem, "messages")
    continues = bool(body.get("continue_final_message"))
    generates = body.get("add_generation_prompt")
    kwargs = _kwargs(body)
    tools, documents = body.get("tools"), body.get("documents")
    # The engine prefers the body's documents over those in chat_template_kwargs.
    others = kwargs.pop("documents", None)
    return Chat(
        messages=messages,
        tools=None if tools is None else _tools(tools),
        documents=_documents(others if documents is None else documents),
        add_generation_prompt=not continues if generates is None else generates,
        continue_final_message=continues,
        kwargs=kwargs,
    )


def _kwargs(body: Body) -> dict[str, Any]:
    if "chat_template_kwargs" not in body and "reasoning_effort" not in body:
        return {}
    given = body.get("chat_template_kwargs") or {}
    # The two names left out come from the body's own fields; null and "auto" count as not given.
    kwargs = {
        key: value
        for key, value in given.items()
        if value not in (None, "auto")
        and key not in ("add_generation_prompt", "continue_final_message")
    }
    if taken := RESERVED & kwargs.keys():
        raise TemplateError("is set by the engine only", f"chat_template_kwargs.{min(taken)}")
    effort = body.get("reasoning_effort")
    if effort is not None:
        if effort not in EFFORTS:
            raise TemplateError(
                f"is {effort[:20]!r}; known: {', '.join(EFFORTS)}", "reasoning_effort"
            )
        if "enable_thinking" not in given:
            kwargs["enable_thinking"] = effort != "none"
        kwargs["reasoning_effort"] = effort
    return kwargs


def _documents(documents: Any) -> list[dict[str, Any]] | None:
    if documents is None:
        return None
    if not isinstance(documents, list) or not all(isinstance(one, dict) for one in documents):
        raise TemplateError("is not a list of objects", "documents")
    return documents


def _tools(tools: list[Any]) -> list[dict[str, Any]]:
    if not tools:
        raise TemplateError("is empty; leave it out, or give at least one tool", "tools")
    return [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _tool(tool: Any, field: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise TemplateError("is not an object", field)
    outer = _fields({"type": "function", **tool}, TOOL, field)
    if outer["type"] != "function":
        raise TemplateError("is not 'function', the only type there is", f"{field}.type")
    inner = _fields(_required(outer, "function", field), FUNCTION, f"{field}.function")
    _required(inner, "name", f"{field}.function")
    if "defer_loading" in outer and "defer_loading" not in inner:
        inner["defer_loading"] = outer["defer_loading"]
    return {**outer, "function": inner}


def _fields(value: Body, kinds: Mapping[str, type], field: str) -> dict[str, Any]:
    found = {key: optional(value, key, kind, f"{field}.") for key, kind in kinds.items()}
    return {key: one for key, one in found.items() if one is not None or key not in OMITTED}


def _required(value: Body, key: str, field: str) -> Any:
    if value[key] is None:
        raise TemplateError("is missing", f"{field}.{key}")
    return value[key]


def optional(value: Body, key: str, kind: type, within: str = "") -> Any:
    """Return a field's value, None if it has none. Raises TemplateError unless it is of `kind`."""
    found = value.get(key)
    if found is not None and not isinstance(found, kind):
        raise TemplateError(f"is not {_NAMES[kind]}", f"{within}{key}")
    return found


_NAMES = {list: "a list", dict: "an object", str: "a string", bool: "a boolean"}
