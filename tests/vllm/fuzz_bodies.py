"""Damages bodies at random, and compares the chats that vLLM and the router make of them.

    PYTHONPATH=. V/bin/python tests/vllm/fuzz_bodies.py [SEED [BODIES]]

Runs where vLLM 0.32 is installed, without a model. A body that either of them refuses is passed over; it
prints those of which the two make different chats, and ends with status 1 if there are any.
"""

import copy
import json
import logging
import random
import sys
from collections import Counter
from typing import Any

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts

from tests.vllm.api_bodies import MESSAGES, RESPONSES, places
from warmpath.prefixstore.chats.chat import TemplateTraits
from warmpath.prefixstore.chats.chat_request import chat_of
from warmpath.prefixstore.chats.conversation import Conversation
from warmpath.prefixstore.chats.jinja_template import TemplateError
from warmpath.router.inference_api.chats.vllm_messages import vllm_messages
from warmpath.router.inference_api.chats.vllm_responses import vllm_responses
from warmpath.router.inference_api.request import UnreadError

Path = tuple[Any, ...]
LEAVES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.5, "", "x", [], {}, ["x"], {"a": 1}),
    *({"type": "text", "text": "q"}, {"type": "input_text", "text": "q"}),
    "x-anthropic-billing-header: z\nq",
]
KEYS = [
    "name", "strict", "detail", "cache_control", "status", "id", "type", "summary", "annotations",
    "namespace", "phase", "tool_name", "foo", "task", "file_id",
]  # fmt: skip
PLACEHOLDERS = {"image": "<i>", "audio": "<a>", "video": "<v>"}


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def damaged(body: Any, pool: list[Any], rng: random.Random) -> Any:
    """Return a body with up to three values replaced, removed or added."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 2, 3])):
        paths = [path for path in places(body) if path]
        if not paths:
            break
        path = rng.choice(paths)
        within, key, found = at(body, path[:-1]), path[-1], at(body, path)
        new = copy.deepcopy(rng.choice(rng.choice([LEAVES, pool])))
        action = rng.choice(["remove", "replace", "replace", "add"])
        if action == "remove":
            del within[key]
        elif action == "replace":
            within[key] = new
        elif isinstance(found, list):
            found.insert(rng.randint(0, len(found)), new)
        elif isinstance(found, dict):
            found[rng.choice(KEYS)] = new
    return body


def plain(value: Any) -> Any:
    """Return a value as JSON has it; lists of parts in vLLM's models can be read only once."""
    return json.loads(
        json.dumps(value, default=lambda o: o.model_dump() if hasattr(o, "model_dump") else list(o))
    )


def vllms_messages(body: Any, traits: TemplateTraits) -> tuple[Any, Any, Any]:
    request = AnthropicMessagesRequest.model_validate(body)
    chat = AnthropicServingMessages.to_chat_completion_request(
        request,
        merge_inline_system=traits.wants_system_first,
        disabled_thinking_effort="none" if traits.heeds_no_effort else "low",
    )
    tools = None if chat.tools is None else [tool.model_dump() for tool in chat.tools]
    return chat.messages, tools, chat.build_chat_params(None, "auto").chat_template_kwargs


def vllms_responses(body: Any, _: TemplateTraits) -> tuple[Any, Any, Any]:
    request = ResponsesRequest.model_validate(body)
    if (
        request.previous_response_id
        or request.previous_input_messages
        or request.truncation == "auto"
    ):
        raise ValueError("what the router does not read")
    messages = construct_input_messages(
        request_instructions=request.instructions, request_input=request.input
    )
    tools = construct_tool_dicts(request.tools, request.tool_choice)
    return messages, tools, request.build_chat_params(None, "auto").chat_template_kwargs


def read(messages: Any) -> list[str]:
    """Return messages as templates see them, in both forms of contents."""
    found = []
    for parts in (False, True):
        try:
            talk = Conversation(parts=parts, placeholders=PLACEHOLDERS)
            found.append(json.dumps(talk.messages(messages)))
        except TemplateError:
            found.append("refused")
    return found


def difference(theirs: Any, ours: Any) -> str:
    """Return what differs between two chats; empty if nothing does."""
    messages, fields = ours
    body = plain(
        {"messages": messages, **{key: one for key, one in fields.items() if one is not None}}
    )
    try:
        chat = chat_of(body)
    except TemplateError:
        return ""
    for one, other in zip(read(plain(theirs[0])), read(body["messages"]), strict=True):
        if other not in (one, "refused"):
            return f"vLLM      {one}\nwarmpath  {other}"
    if json.dumps(plain(theirs[1])) != json.dumps(chat.tools):
        return f"vLLM      {theirs[1]}\nwarmpath  {chat.tools}"
    kwargs = chat.kwargs | {
        "add_generation_prompt": chat.add_generation_prompt,
        "continue_final_message": chat.continue_final_message,
    }
    expected = {key: one for key, one in theirs[2].items() if one not in (None, "auto")}
    return "" if kwargs == expected else f"vLLM      {expected}\nwarmpath  {kwargs}"


def main() -> int:
    logging.disable(logging.CRITICAL)
    seed, count = (*map(int, sys.argv[1:]), *(1, 3000)[len(sys.argv) - 1 :])
    rng = random.Random(seed)
    apis = {
        "messages": (MESSAGES, vllms_messages, vllm_messages),
        "responses": (RESPONSES, vllms_responses, vllm_responses),
    }
    pools = {
        name: [at(body, path) for _, body in bodies for path in places(body)]
        for name, (bodies, _, _) in apis.items()
    }
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        name = rng.choice([*apis])
        bodies, vllms, routers = apis[name]
        body = damaged(rng.choice(bodies)[1], pools[name], rng)
        traits = TemplateTraits(rng.random() < 0.5, rng.random() < 0.5, writes_calls_as_given=False)
        try:
            theirs = vllms(copy.deepcopy(body), traits)
            theirs = (plain(theirs[0]), *theirs[1:])
        except Exception:  # noqa: BLE001  vLLM refuses in many ways
            outcomes[f"{name}: vLLM refuses"] += 1
            continue
        try:
            ours = routers(body, traits)
        except UnreadError:
            outcomes[f"{name}: not read"] += 1
            continue
        found = difference(theirs, ours)
        outcomes[f"{name}: {'different' if found else 'alike'}"] += 1
        if found:
            sys.stdout.write(f"{name}\n{json.dumps(body)}\n{found}\n")
    sys.stdout.write(f"{dict(outcomes)}\n")
    return any("different" in outcome for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
