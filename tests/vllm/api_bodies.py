"""The bodies that were recorded with vLLM (`recorded_apis.py`); clients send such ones, and stranger ones.

`fuzz_bodies.py` of commit 6bf0b92b damaged them at random: vLLM 0.32 and the router read them alike.
"""

from collections.abc import Iterator
from typing import Any

HI = {"role": "user", "content": "Tell me about the sea."}
LONG = "The quick brown fox jumps over the lazy dog. " * 12
SYSTEM = "You are a helper who answers in one short sentence. " * 6
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "é"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city"],
}
TEXT = {"type": "text", "text": "What is this?"}


def messages(*given: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"model": "tiny", "max_tokens": 4, "messages": list(given), **fields}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def use(**fields: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": "toolu_1", "name": "weather"}
    return block | {"input": {"city": "Rome", "n": 1.5}} | fields


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


THOUGHT = {"type": "thinking", "thinking": "Hm, the sea.", "signature": "abc"}
ANTHROPIC_TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}

MESSAGES = [
    messages(HI),
    messages(HI, system=SYSTEM),
    messages(HI, system=[{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", "cache_control": {"type": "ephemeral"}}]),
    messages(HI, system=[{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "You are Claude Code."}]),
    messages(HI, system=[{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}]),
    messages(HI, system="x-anthropic-billing-header: cch=1;\nrest"),
    messages(HI, system=""),
    messages(HI, system=[]),
    messages(HI, system=[{"type": "text", "text": ""}]),
    messages(user([TEXT])),
    messages(user([TEXT, {**TEXT, "cache_control": {"type": "ephemeral"}}])),
    messages(user([{"type": "text", "text": ""}, TEXT])),
    messages(user([{"type": "text", "text": ""}])),
    messages(user([])),
    messages(user("")),
    messages(HI, {"role": "assistant", "content": "It is"}),
    messages(HI, {"role": "assistant", "content": "It is wet."}, HI, system=SYSTEM),
    messages(HI, assistant({"type": "text", "text": "It is wet."}), HI),
    messages(HI, assistant(THOUGHT, {"type": "text", "text": "It is wet."}), HI),
    messages(HI, assistant(THOUGHT, THOUGHT), HI),
    messages(HI, assistant({"type": "redacted_thinking", "data": "zzz"}), HI),
    messages(HI, assistant(), HI),
    messages(HI, assistant(TEXT, use()), user([result("17 degrees")]), tools=[ANTHROPIC_TOOL]),
    messages(HI, assistant(use(), use(id="toolu_2", name="clock", input={})), user([result("17"), result("noon", tool_use_id="toolu_2"), TEXT])),
    messages(HI, assistant(use(input=None)), user([TEXT, result([TEXT, TEXT])])),
    messages(HI, assistant(use()), user([result([])])),
    messages(HI, assistant(use()), user([result(None, is_error=True)])),
    messages(HI, assistant(use()), user([result([{"type": "tool_reference", "tool_name": "clock"}])])),
    messages(HI, assistant(use()), user([result([TEXT, {"type": "tool_reference", "name": "clock"}])])),
    messages(user([use()])),
    messages(HI, assistant({"type": "tool_reference", "tool_name": "clock"}, TEXT), HI),
    messages(HI, tools=[ANTHROPIC_TOOL]),
    messages(HI, tools=[{"name": "clock", "input_schema": {}}]),
    messages(HI, tools=[{**ANTHROPIC_TOOL, "strict": True}], tool_choice={"type": "any"}),
    messages(HI, tools=[{**ANTHROPIC_TOOL, "strict": False, "defer_loading": True, "type": "custom"}], tool_choice={"type": "none"}),
    messages(HI, tools=[]),
    messages(HI, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    messages(HI, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1100),
    messages(HI, thinking={"type": "adaptive"}),
    messages(HI, thinking={"type": "disabled"}),
    messages(HI, output_config={"effort": "high"}),
    messages(HI, output_config={"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}}),
    messages(HI, output_config={}, metadata={"user_id": "u"}, temperature=0, top_k=5, stop_sequences=["x"]),
    messages(HI, chat_template_kwargs={"mood": "glad", "enable_thinking": False}, output_config={"effort": "low"}),
    messages(HI, cache_salt="secret"),
    messages(HI, {"role": "system", "content": "Now be brief."}, HI),
    messages(user([{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/x.png"}}])),
    messages(user([{"type": "document", "source": {}}])),
    messages(user('Größe: 日本 😀 \\ " \n\t\u2028 end')),
    messages(user(LONG), system=SYSTEM),
]  # fmt: skip


def responses(given: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"model": "tiny", "max_output_tokens": 4, "input": given, **fields}


def item(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def called(**fields: Any) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c1", "name": "weather"}
    return call | {"arguments": '{"city": "Rome"}'} | fields


def output(value: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c1", "output": value, **fields}


def thought(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], **fields}


INPUT = {"type": "input_text", "text": "What is this?"}
OUTPUT = {"type": "output_text", "text": "A fish.", "annotations": []}
FUNCTION = {"type": "function", "name": "weather", "description": "Tells the weather."}
FUNCTION |= {"parameters": SCHEMA}

RESPONSES = [
    responses("Tell me about the sea."),
    responses("Tell me about the sea.", instructions=SYSTEM),
    responses(""),
    responses([]),
    responses([], instructions="x"),
    responses([item("user", "Hi")]),
    responses([item("user", "Hi", type="message")]),
    responses([item("system", "S"), item("developer", "D"), item("user", "Hi")], instructions="I"),
    responses([item("user", [INPUT])]),
    responses([item("user", [INPUT, INPUT])]),
    responses([item("user", [INPUT], type="message", id="msg_0", status="completed")]),
    responses([item("user", "Hi"), item("assistant", "Hello."), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", "Hello.", type="message"), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", [OUTPUT], type="message"), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", [OUTPUT, OUTPUT], type="message", id="msg_1", status="completed"), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", [{"type": "output_text", "text": "A"}], type="message"), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", [OUTPUT]), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", [INPUT]), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", "A"), item("assistant", "B"), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", [{"type": "refusal", "refusal": "no"}], type="message"), item("user", "Bye")]),
    responses([item("user", "Hi"), item("assistant", [OUTPUT], type="message", status="incomplete")]),
    responses([item("user", "Hi"), item("assistant", "Hel", status="in_progress")]),
    responses([item("user", "Hi"), item("assistant", "Hel", type="message", status="incomplete")]),
    responses([item("user", "Hi"), item("assistant", "Hello.")]),
    responses([item("user", "Hi"), called(), output("17")], tools=[FUNCTION]),
    responses([item("user", "Hi"), called(id="fc_1", status="completed"), output("17", id="fco_1", status="completed")]),
    responses([item("user", "Hi"), called(), called(call_id="c2"), output("17"), output("18", call_id="c2")]),
    responses([item("user", "Hi"), item("assistant", "Let me see."), called(), output("17"), item("assistant", "17."), item("user", "Ok")]),
    responses([item("user", "Hi"), called(namespace="n"), output("17")]),
    responses([item("user", "Hi"), called(), output([INPUT])]),
    responses([item("user", "Hi"), called(), output([INPUT], id="x", status="completed")]),
    responses([item("user", "Hi"), called(arguments="bad"), output("")]),
    responses([item("user", "Hi"), thought(content=[{"type": "reasoning_text", "text": "Hm."}]), item("assistant", [OUTPUT], type="message"), item("user", "Bye")]),
    responses([item("user", "Hi"), thought(id="rs_1", summary=[{"type": "summary_text", "text": "Sum."}]), called(), output("17")]),
    responses([item("user", "Hi"), thought(), item("user", "Bye")]),
    responses([item("user", "Hi"), thought(encrypted_content="zz"), item("user", "Bye")]),
    responses([item("user", "Hi"), thought(content=[{"type": "reasoning_text", "text": "Hm."}]), thought(content=[{"type": "reasoning_text", "text": "Ah."}]), item("user", "Bye")]),
    responses([item("user", "Hi"), thought(content=[{"type": "reasoning_text", "text": "Hm"}], status="incomplete")]),
    responses([{"type": "item_reference", "id": "msg_1"}, item("user", "Hi")]),
    responses([{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"}, {"type": "custom_tool_call_output", "call_id": "c", "output": "y"}, item("user", "Hi")]),
    responses([item("user", [{"type": "input_image", "image_url": "http://127.0.0.1:9/x.png"}])]),
    responses([item("tool", "x")]),
    responses("Hi", tools=[FUNCTION]),
    responses("Hi", tools=[{"type": "function", "name": "clock"}]),
    responses("Hi", tools=[{**FUNCTION, "strict": True}, {"type": "function", "name": "clock", "parameters": None, "strict": None}]),
    responses("Hi", tools=[{**FUNCTION, "strict": False, "defer_loading": True}], tool_choice="none"),
    responses("Hi", tools=[{"type": "web_search"}]),
    responses("Hi", tools=[FUNCTION, {"type": "web_search"}]),
    responses("Hi", tools=[{"type": "code_interpreter", "container": {"type": "auto"}}, FUNCTION]),
    responses("Hi", tools=[{"type": "custom", "name": "patch", "description": "d"}]),
    responses("Hi", tools=[{"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}]),
    responses("Hi", tools=[]),
    responses("Hi", reasoning={"effort": "high"}),
    responses("Hi", reasoning={"effort": "none"}),
    responses("Hi", reasoning={"effort": None, "summary": "auto"}),
    responses("Hi", reasoning={"effort": "low"}, chat_template_kwargs={"mood": "sad", "enable_thinking": False}),
    responses("Hi", chat_template_kwargs={"reasoning_effort": "high", "mood": None}),
    responses("Hi", truncation="auto"),
    responses("Hi", truncation="disabled", store=False, metadata={}, temperature=0, text={"format": {"type": "text"}}),
    responses("Hi", text={"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}}),
    responses("Hi", cache_salt="secret"),
    responses("Hi", previous_response_id="resp_1"),
    responses('Größe: 日本 😀 \\ " \n\t end'),
    responses([item("user", LONG)], instructions=SYSTEM),
]  # fmt: skip


def chat(*given: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    body = {"model": "tiny", "max_tokens": 4, "messages": list(given), **fields}
    return "/v1/chat/completions", body


def completion(prompt: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"model": "tiny", "max_tokens": 4, "prompt": prompt, **fields}


def generate(ids: list[int], **fields: Any) -> tuple[str, dict[str, Any]]:
    sampling = {"max_tokens": 4, "temperature": 0}
    body = {"model": "tiny", "token_ids": ids, "sampling_params": sampling, **fields}
    return "/inference/v1/generate", body


IDS = [(7 * n) % 2000 + 7 for n in range(100)]

OTHERS = [
    chat(HI),
    chat(user(LONG), n=2),
    chat(user(LONG), logprobs=True, top_logprobs=2),
    completion("Once upon a time"),
    completion(IDS, echo=True),
    completion([IDS]),
    completion(LONG, cache_salt="secret", logprobs=2),
    generate(IDS),
    generate(IDS, cache_salt="secret", request_id="r", output_mode="text"),
    generate(IDS[:33], stream=False, features=None),
]  # fmt: skip

BODIES = [*MESSAGES, *RESPONSES, *OTHERS]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values within a value, its own first."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))
