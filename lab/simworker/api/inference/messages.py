"""Anthropic's messages: the body of the chat that vLLM makes of a request's body, and the answer.

Source: `vllm/entrypoints/anthropic/serving.py` of 0.32. The parts of a content are joined by line
breaks, as vLLM joins them for templates that take texts. Media, and fields whose effect depends on the
model's template, are refused. Where vLLM tells prompt tokens that it puts into its cache from others
(`cache_creation_input_tokens`), both are `input_tokens` here.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from warmpath.lab.simworker.api.errors import ApiError, bad
from warmpath.lab.simworker.api.fields import Fields
from warmpath.lab.simworker.api.inference.answer import Answer, refuse
from warmpath.lab.simworker.api.inference.token_stream import Piece

BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a line that Claude Code sends, different in each request; vLLM drops it."""
IGNORED = ("redacted_thinking", "tool_reference")
"""Types of blocks that templates do not see."""


def message_chat(fields: Fields) -> dict[str, Any]:
    """Return the body of the chat that a request becomes. Raises ApiError for refused fields."""
    if fields.get("max_tokens") is None:
        raise bad("max_tokens", "is missing")
    if fields.object("thinking").get("type") == "disabled":
        raise bad("thinking", "its effect depends on the template's code; leave it out")
    refuse(fields.object("tool_choice"), {"type": ("auto", "none")})
    output = fields.object("output_config")
    refuse(output, {"format": (None,)})
    given = fields.get("messages")
    if not isinstance(given, list):
        raise bad("messages", "a list is needed")
    messages = [one for at, message in enumerate(given) for one in _messages(message, at)]
    names = ("model", "max_tokens", "stream", "cache_salt", "chat_template_kwargs")
    return {name: fields.get(name) for name in names} | {
        "messages": [*_system(fields.get("system")), *messages],
        "tools": _tools(fields.get("tools")),
        "reasoning_effort": output.get("effort"),
    }


def _system(given: Any) -> Iterator[dict[str, Any]]:
    if not given:
        return
    if isinstance(given, str):
        head, _, rest = given.partition("\n")
        yield {"role": "system", "content": rest if head.startswith(BILLING_HEADER) else given}
        return
    texts = [_text(block, "system") for block in _blocks(given, "system")]
    if kept := [text for text in texts if text and not text.startswith(BILLING_HEADER)]:
        yield {"role": "system", "content": "".join(kept)}


def _messages(given: Any, at: int) -> Iterator[dict[str, Any]]:
    """Yield the messages that the message at `at` becomes: a tool's result is a message of its own."""
    field = f"messages[{at}]"
    role = given.get("role") if isinstance(given, dict) else None
    if role not in ("user", "assistant"):
        raise bad(f"{field}.role", "user or assistant is needed; put system texts into system")
    content = given.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in _blocks(content, field):
        match role, block.get("type"):
            case _, "text":
                texts += [text for text in (_text(block, field),) if text]
            case "assistant", "thinking":
                thoughts.append(Fields(block).text("thinking"))
            case "assistant", "tool_use":
                calls.append(_call(block, field))
            case "user", "tool_result":
                yield _result(block, field)
            case _, kind if kind not in IGNORED:
                raise bad(field, f"a simulated model takes no {kind} in a message of the {role}")
    if role == "assistant" or texts:
        message: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if thoughts:
            message["reasoning"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        yield message


def _call(block: dict[str, Any], field: str) -> dict[str, Any]:
    fields = Fields(block)
    if not fields.text("id"):
        raise bad(f"{field}.id", "is missing: the call of a tool needs one")
    arguments = json.dumps(fields.object("input").body)
    function = {"name": fields.text("name"), "arguments": arguments}
    return {"id": fields.text("id"), "type": "function", "function": function}


def _result(block: dict[str, Any], field: str) -> dict[str, Any]:
    content = block.get("content") or ""
    if not isinstance(content, str):
        content = "\n".join(_text(item, field) for item in _blocks(content, field))
    return {"role": "tool", "tool_call_id": Fields(block).text("tool_use_id"), "content": content}


def _tools(given: Any) -> list[dict[str, Any]] | None:
    return None if given is None else [_tool(tool) for tool in _blocks(given, "tools")]


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    schema = given.get("input_schema")
    if not isinstance(schema, dict):
        raise bad("tools", "a tool without input_schema: a simulated model has no such tool")
    kept = {name: given.get(name) for name in ("name", "description", "strict", "defer_loading")}
    function = kept | {"parameters": schema if "type" in schema else schema | {"type": "object"}}
    return {"type": "function", "function": function}


def _blocks(given: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise bad(field, "a list of objects is needed")
    return given


def _text(block: dict[str, Any], field: str) -> str:
    if block.get("type") != "text":
        raise ApiError(f"{field}: a simulated model takes no {block.get('type')} here", field=field)
    return Fields(block).text("text")


STOP_REASONS = {"length": "max_tokens"}


class MessageAnswer(Answer):
    """An answer in Anthropic's form, with one text."""

    last: ClassVar = b""

    def _begin(self) -> None:
        options = self._options
        [self._flight] = self._flights
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{options.answer_id}", "type": "message", "role": "assistant",
            "content": [], "model": options.model, "stop_reason": None, "stop_sequence": None,
        }  # fmt: skip
        self._has_begun = False
        self._stop_reason = ""

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        [piece] = pieces
        content = [{"type": "text", "text": self._text.decode(piece.tokens)}]
        return self._head | {
            "content": content, "stop_reason": _stop_reason(piece), "usage": self._usage()
        }  # fmt: skip

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yield the events for new tokens; the first ones begin the message and its text."""
        if not self._has_begun:
            self._has_begun = True
            usage = {"input_tokens": len(self._flight.ask.prompt), "output_tokens": 0}
            yield {"type": "message_start", "message": self._head | {"usage": usage}}
            block = {"type": "text", "text": ""}
            yield {"type": "content_block_start", "content_block": block, "index": 0}
        delta = {"type": "text_delta", "text": self._text.decode(piece.tokens)}
        yield {"type": "content_block_delta", "delta": delta, "index": 0}
        self._stop_reason = _stop_reason(piece)

    def closing(self) -> Sequence[dict[str, Any]]:
        """Return the events that end the text and the message, with the usage."""
        stop = {"stop_reason": self._stop_reason, "stop_sequence": None}
        return (
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": self._usage()},
            {"type": "message_stop"},
        )

    def _usage(self) -> dict[str, int]:
        flight = self._flight
        cached = max(flight.cached_tokens, 0)
        return {
            "input_tokens": len(flight.ask.prompt) - cached,
            "output_tokens": len(flight.tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }


def _stop_reason(piece: Piece) -> str:
    return STOP_REASONS.get(piece.finish_reason or "", "end_turn")
