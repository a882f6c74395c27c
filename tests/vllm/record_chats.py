"""Records how vLLM reads chats: `python tests/vllm/record_chats.py > tests/prefixstore/vllm_chats.jsonl`.

Runs where vLLM is installed (0.32 made the recording), without a model: its request model and its own
parsing are called, and a stub takes media without fetching them.
"""

import copy
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import chat_utils, hf, merge_kwargs

PLACEHOLDERS = {"image": "<image>", "audio": "<audio>", "video": "<video>"}
HI = {"role": "user", "content": "hi"}
TOOL = {
    "type": "function",
    "function": {
        "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}},
        "name": "f",
        "x": 1,
        "description": "d",
    },
    "extra": 1,
}
CALL = {
    "function": {"arguments": '{"b": 1, "a": [2, "é"]}', "name": "f"},
    "id": "c1",
    "type": "function",
}
PICTURE = {"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}, "foo": 1}


def user(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts), **more}]}


def one(role: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, **fields}]}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def called(*calls: Any, content: Any = "c") -> dict[str, Any]:
    return one("assistant", content=content, tool_calls=list(calls))


def arguments(value: Any) -> dict[str, Any]:
    return {**CALL, "function": {"name": "f", "arguments": value}}


def hi(**fields: Any) -> dict[str, Any]:
    return {"messages": [HI], **fields}


BODIES: list[dict[str, Any]] = [
    hi(),
    hi(tools=[TOOL]),
    hi(tools=[{"function": {"name": "f"}}]),
    hi(tools=[TOOL], tool_choice="none"),
    hi(tools=[{**TOOL, "function": {"name": "f", "strict": True, "parameters": None}}]),
    hi(tools=[{**TOOL, "defer_loading": True}]),
    hi(tools=[{**TOOL, "function": {"name": "f", "defer_loading": False}}]),
    hi(tools=None),
    hi(reasoning_effort="none"),
    hi(reasoning_effort="high", chat_template_kwargs={"reasoning_effort": "low"}),
    hi(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}),
    hi(reasoning_effort="high", chat_template_kwargs={"enable_thinking": None}),
    hi(chat_template_kwargs={"x": "auto", "y": None, "z": [1], "bos_token": "B", "f": False}),
    hi(chat_template_kwargs={"add_generation_prompt": False, "continue_final_message": True}),
    hi(chat_template_kwargs={"documents": [{"a": "b"}]}),
    hi(chat_template_kwargs={"documents": [{"a": "b"}]}, documents=[{"c": "d"}]),
    hi(documents=[{"title": "a", "text": "b"}]),
    hi(add_generation_prompt=False, continue_final_message=True),
    user(text("a", cache_control={"type": "x"}, foo=1), text("b"), foo=1, name="bob"),
    user(),
    user(text(""), text("b")),
    user(text(""), text("")),
    one("user"),
    one("user", content=""),
    one("user", content="x", task="t", tools=[TOOL], tool_calls=[1], reasoning="r"),
    one("weird", content="x", task="t", tools=[TOOL]),
    one("weird", content=["a", text("b")]),
    one("developer", content="x", tools=[TOOL]),
    one("developer", content="x", tools=[{"function": {"parameters": {}, "strict": True, "name": "f"}}]),
    one("developer", content="x"),
    user(PICTURE, text("b"), {"type": "image_url", "image_url": {"url": "u"}, "uuid": "7"}),
    user({"image_url": "http://x"}, text("b <image> c")),
    user({"type": "image_url", "image_url": None, "uuid": "u"}),
    user(PICTURE),
    user(PICTURE, text("")),
    user(PICTURE, PICTURE, text("b <image> c")),
    user({"type": "input_image", "image_url": "http://x", "detail": "auto"}),
    user(
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "u"}},
        {"type": "audio_url", "audio_url": {"url": "u"}},
    ),
    user(
        {"type": "refusal", "refusal": "no"},
        {"type": "thinking", "thinking": "t", "closed": True},
        {"type": "input_text", "text": "q"},
        {"type": "tool_reference", "name": "n"},
        {"type": "output_text", "text": "q"},
    ),
    user({"type": "text", "text": None}, text("b")),
    one("assistant", content=[{"type": "refusal", "refusal": "no"}, text("t")]),
    one("assistant"),
    one("assistant", content=None, refusal="no", tool_calls=[{**CALL, "index": 0}]),
    called(arguments("[]")),
    called(arguments("bad")),
    called(arguments("")),
    called(arguments("null")),
    called(arguments('{"a": 1e400, "b": NaN, "a": 2}')),
    called({"x": 1, **arguments('{"z": 1, "y": {"x": 2}}')}, CALL, content=[text("a"), text("b")]),
    called({"id": "1", "type": "function", "function": {"z": 2, "name": "f", "arguments": "{}"}}),
    called(),
    one("assistant", content="c", tool_calls=None),
    one("assistant", content="c", function_call={"name": "f", "arguments": "{}"}),
    one("assistant", content="c", reasoning_content="r"),
    one("assistant", content="c", reasoning="r", reasoning_content="q", thinking="z"),
    one("assistant", content="c", reasoning=None, reasoning_content="q"),
    one("assistant", content="c", reasoning="", reasoning_content="q"),
    one("tool", content=[text("a"), text("b")], tool_call_id="1"),
    one("tool", content="x", tool_call_id="1", name="f"),
    one("tool", content="x"),
    one("tool", content="x", tool_call_id=None),
    one("tool", content=[{"type": "tool_reference", "name": "n"}, text("b")], tool_call_id="1"),
    one("tool", content=[PICTURE, text("b")], tool_call_id="1"),
    one("tool", content=[], tool_call_id="1"),
    one("function", content="x", name="f"),
    one("system", content="x-anthropic-billing-header: cch=1\nrest"),
    one("system", content=[text("x-anthropic-billing-header: cch=1"), text("rest")]),
    one("system", content="x-anthropic-billing-header: cch=1"),
    one("user", content="x-anthropic-billing-header: cch=1\nrest"),
    {"messages": [HI, one("system", content="s")["messages"][0], one("developer", content="d")["messages"][0]]},
    {"messages": [one("developer", content="d", name="n")["messages"][0], HI]},
    {"messages": [one("developer", content="d")["messages"][0], one("system", content="")["messages"][0], HI]},
]  # fmt: skip


class Parser(chat_utils.BaseMultiModalContentParser):
    """Takes media without fetching them."""

    def __init__(self, tracker: "Tracker") -> None:
        super().__init__()
        self.model_config = tracker.model_config

    model_config: Any = None

    def _image(self, *_: Any, **__: Any) -> None:
        self._add_placeholder("image", PLACEHOLDERS["image"])

    def _audio(self, *_: Any, **__: Any) -> None:
        self._add_placeholder("audio", PLACEHOLDERS["audio"])

    def _video(self, *_: Any, **__: Any) -> None:
        self._add_placeholder("video", PLACEHOLDERS["video"])

    parse_image = parse_image_embeds = parse_image_pil = _image
    parse_audio = parse_audio_embeds = parse_input_audio = _audio
    parse_video = parse_video_embeds = parse_prompt_embeds = _video


class Tracker:
    model_config = SimpleNamespace(enable_prompt_embeds=False)

    def create_parser(self, **_: Any) -> Parser:
        return Parser(self)


def recorded(body: dict[str, Any]) -> dict[str, Any]:
    request = ChatCompletionRequest.model_validate(copy.deepcopy(body))
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    defaults = merge_kwargs(None, {"tools": tools, "tokenize": False})
    params = request.build_chat_params(None, "auto").with_defaults(defaults)
    found = {"body": body, "kwargs": params.get_apply_chat_template_kwargs()}
    for form in ("string", "openai"):
        # The lists of parts in a request can be read only once.
        read = ChatCompletionRequest.model_validate(copy.deepcopy(body))
        chat: list[Any] = []
        for message in read.messages:
            chat += chat_utils._parse_chat_message_content(message, Tracker(), form, False)
        chat_utils._postprocess_messages(chat)
        found[form] = chat
        merged = hf._consolidate_system_messages(hf._convert_developer_to_system(chat))
        found[f"{form}_without_developers"] = merged
    return found


def main() -> None:
    logging.disable(logging.CRITICAL)
    templates = Path(__file__).parents[1] / "prefixstore" / "templates"
    for path in sorted(templates.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        form = hf._detect_content_format(source, default="string")
        merges = AnthropicServingMessages._detect_merge_inline_system(source)
        line = {"template": path.name, "format": form, "wants_system_first": merges}
        sys.stdout.write(json.dumps(line) + "\n")
    for body in BODIES:
        sys.stdout.write(json.dumps(recorded(body), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
