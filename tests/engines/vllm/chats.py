"""Phases of chats: turns below shared system prompts, and tools."""

import json
from random import Random
from typing import Any

from tests.engines.vllm.driver import Driver
from tests.engines.vllm.prompts import somewhere
from tests.vllm.engine import text

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather — naïvely.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "exit", "parameters": None}},
]


async def turns(driver: Driver, rng: Random) -> None:
    """Hold conversations of several turns below three shared system prompts, most through Envoy."""
    systems = [text(rng, 120) for _ in range(3)]
    talks = [[{"role": "system", "content": rng.choice(systems)}] for _ in range(14)]
    for _ in range(6):
        for number, messages in enumerate(talks):
            messages.append({"role": "user", "content": text(rng, rng.randint(5, 40))})
            body: dict[str, Any] = {"messages": messages, "max_tokens": rng.randint(2, 24)}
            answer = await driver.ask(body, somewhere(rng), session=f"talk-{number}")
            messages.append({"role": "assistant", "content": answer.text})


async def parts(driver: Driver, rng: Random) -> None:
    """Send chats in less usual forms: content parts, developers, names, options of the template."""
    hello = {"role": "user", "content": text(rng, 90)}
    contents = [
        {"type": "text", "text": text(rng, 60)},
        {"type": "text", "text": "日本語 👩‍👩‍👧 <|end|>"},
    ]
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": contents}]},
        {"messages": [{"role": "developer", "content": text(rng, 50)}, hello]},
        {"messages": [{"role": "system", "content": contents[:1]}, hello, {**hello, "name": "ann"}]},
        {"messages": [hello], "chat_template_kwargs": {"mood": "glad", "enable_thinking": False}},
        {"messages": [hello], "reasoning_effort": "low"},
        {"messages": [hello], "add_special_tokens": True},
        {"messages": [hello, {"role": "assistant", "content": "It is"}],
         "add_generation_prompt": False, "continue_final_message": True},
        {"messages": [hello], "logprobs": True, "top_logprobs": 2},
        {"messages": [hello], "max_tokens": 40, "stop": ["zzz"]},
    ]  # fmt: skip
    for _ in range(4):
        for body in bodies:
            await driver.ask(body, somewhere(rng))


async def tools(driver: Driver, rng: Random) -> None:
    """Send chats with tools, calls of them and their results."""
    for number in range(9):
        given = rng.sample(TOOLS, rng.randint(1, 3))
        messages: list[dict[str, Any]] = [{"role": "user", "content": text(rng, 60)}]
        for turn in range(4):
            body: dict[str, Any] = {"messages": messages, "tools": given, "max_tokens": 8}
            if turn % 2:
                body["tool_choice"] = "none"
            await driver.ask(body, somewhere(rng), session=f"tools-{number}")
            name = f"call-{turn}"
            wanted = json.dumps({"city": text(rng, 2), "n": 1.5, "é": [turn, None]})
            call = {"name": "weather", "arguments": wanted}
            messages += [
                {
                    "role": "assistant", "content": text(rng, 9) if turn == 1 else None,
                    "tool_calls": [{"id": name, "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": name, "content": text(rng, 20)},
            ]  # fmt: skip
