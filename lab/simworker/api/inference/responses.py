"""OpenAI's responses: the body of the chat that vLLM makes of a request's body, and the answer.

Source: `vllm/entrypoints/openai/responses/{protocol,serving,utils}.py` of 0.32, and recordings of its
answers. The parts of a content are joined by line breaks, as vLLM joins them for templates that take
texts. Media, earlier responses, and items that vLLM rewrites are refused. A template that writes a
tool's call as it comes has its arguments before its name here, and behind it in vLLM.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from warmpath.lab.simworker.api.errors import bad
from warmpath.lab.simworker.api.fields import Fields
from warmpath.lab.simworker.api.inference.answer import BOTH, NOTHING, Answer, refuse
from warmpath.lab.simworker.api.inference.token_stream import Piece

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
"""Matches the beginnings of the types of tools that no template sees."""


def response_chat(fields: Fields) -> dict[str, Any]:
    """Return the body of the chat that a request becomes. Raises ApiError for refused fields."""
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
    """Set a field of the assistant's last message, or of a new one if that has it already."""
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


class ResponseAnswer(Answer):
    """A response of one message with one text."""

    last: ClassVar = b""

    def _begin(self) -> None:
        options = self._options
        [self._flight] = self._flights
        self._item = {"id": f"msg_{options.answer_id}", "role": "assistant", "type": "message"}
        self._place = {"item_id": self._item["id"], "output_index": 0, "content_index": 0}
        self._response = {
            "id": f"resp_{options.answer_id}",
            "object": "response",
            "created_at": self._created,
            "model": options.model,
            "max_output_tokens": options.max_tokens,
        }
        self._sent = 0
        self._has_begun = False
        self._is_cut = False

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        [piece] = pieces
        self._is_cut = piece.finish_reason == "length"
        return self._finished()

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yield the events that are sent before the first token."""
        begun = self._response | {"status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def chunks(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yield the events for new tokens; the first ones begin the message and its text."""
        if not self._has_begun:
            self._has_begun = True
            item = self._item | {"status": "in_progress", "content": []}
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._event("response.content_part.added", **self._place, part=_part(""))
        delta = self._text.decode(piece.tokens)
        yield self._event("response.output_text.delta", **self._place, delta=delta, logprobs=[])
        self._is_cut = piece.finish_reason == "length"

    def closing(self) -> Iterator[dict[str, Any]]:
        """Yield the events that end the text, the message and the response, with the usage."""
        response = self._finished()
        [item] = response["output"]
        [part] = item["content"]
        text = part["text"]
        yield self._event("response.output_text.done", **self._place, text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event("response.completed", response=response)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._sent += 1
        return {"type": kind, "sequence_number": self._sent - 1} | fields

    def _finished(self) -> dict[str, Any]:
        flight = self._flight
        part = _part(self._text.decode(flight.tokens))
        prompt, output = len(flight.ask.prompt), len(flight.tokens)
        return self._response | {
            "status": "incomplete" if self._is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if self._is_cut else None,
            "output": [self._item | {"status": "completed", "content": [part]}],
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": max(flight.cached_tokens, 0)},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + output,
            },
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
