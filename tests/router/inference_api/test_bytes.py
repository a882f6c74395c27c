"""Bodies of which only the engine knows the tokens share bytes about as far as they share tokens."""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fake_engine import FakeEngine
from tests.router.endpoint_picker.gateway import PODS, asking
from tests.router.inference_api.test_reader import LIMITS, read
from tests.router.pick_stand import QUIET
from tests.vllm.api_bodies import ANTHROPIC_TOOL, LONG, SYSTEM, use
from warmpath.router.prompt import tokenizer_sources
from warmpath.router.prompt.truncate import CHARS_PER_TOKEN

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TURNS = 4
MARK = {"cache_control": {"type": "ephemeral"}}
Body = dict[str, Any]


def responses(**fields: Any) -> Iterator[Body]:
    """Yield the turns of an agent that calls a function before each answer but the first."""
    items: list[Any] = []
    for turn in range(TURNS):
        items.append({"role": "user", "content": f"{turn} {LONG}"})
        if turn:
            call = {"call_id": str(turn), "name": "f", "arguments": "{}"}
            items.append({"type": "function_call", **call})
            items.append({"type": "function_call_output", "call_id": str(turn), "output": LONG})
        tool = {"type": "function", "name": "f", "parameters": {}}
        yield {
            "model": "demo",
            "instructions": SYSTEM,
            "tools": [tool],
            "input": [*items],
            **fields,
        }
        items.append({"role": "assistant", "content": f"Done {turn}."})


def messages(**fields: Any) -> Iterator[Body]:
    """Yield the turns of an agent as Claude Code sends them: the marks move, the first line changes."""
    said: list[Any] = []
    for turn in range(TURNS):
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": LONG}
        text = {"type": "text", "text": f"{turn} {LONG}"}
        said.append({"role": "user", "content": [result, text] if turn else [text]})
        if turn:
            said.append({"role": "system", "content": "Mind the time."})
            said.append({"role": "user", "content": [text]})
        *others, last = said
        *blocks, block = last["content"]
        marked = {"role": "user", "content": [*blocks, block | MARK]}
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={turn * 7919};"}
        system = [billing, {"type": "text", "text": SYSTEM, **MARK}]
        yield {
            "model": "demo", "tools": [ANTHROPIC_TOOL], "system": system, "messages": [*others, marked],
            **fields,
        }  # fmt: skip
        said.append({"role": "assistant", "content": [{"type": "text", "text": "I see."}, use()]})


def shared_by(texts: Sequence[bytes]) -> bytes:
    """Return the beginning that two texts share."""
    one, other = texts
    alike = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return one[: next(alike, min(len(one), len(other)))]


CONVERSATIONS = [(RESPONSES, responses), (MESSAGES, messages)]


@pytest.mark.parametrize(("path", "turns"), CONVERSATIONS)
async def test_each_turn_begins_with_the_one_before_whatever_engine_reads_it(
    path: str, turns: Any
) -> None:
    before = b""
    for body in turns():
        asked = [await read(path, body, engine=one, traits=None) for one in ("vllm", "trtllm", "")]
        [text] = {one.text for one in asked}
        assert text.startswith(before)
        before = text.removesuffix(b"]")
        assert 0.7 < len(text) / CHARS_PER_TOKEN / max(1, asked[1].estimated_tokens) < 2


@pytest.mark.parametrize(("path", "turns"), CONVERSATIONS)
@pytest.mark.parametrize(
    "other",
    [{"cache_salt": "s"}, {"tools": []}, {"system": "S", "instructions": "S"}],
    ids=["salt", "tools", "system"],
)
async def test_prompts_that_differ_at_their_begin_share_no_bytes_from_there_on(
    path: str, turns: Any, other: Body
) -> None:
    texts = [
        (await read(path, [*turns(**fields)][-1], engine="trtllm")).text for fields in ({}, other)
    ]
    assert all(LONG.encode() in text for text in texts)
    shared = shared_by(texts)
    assert SYSTEM.encode() not in shared
    assert LONG.encode() not in shared


async def test_what_an_earlier_response_held_is_shared_by_nobody_else() -> None:
    texts = [
        (await read(RESPONSES, {"input": LONG, "instructions": SYSTEM, "previous_response_id": one})).text
        for one in ("r1", "r1", "r2")
    ]  # fmt: skip
    assert texts[0] == texts[1]
    assert shared_by(texts[1:]).endswith(b'"r')


async def test_a_medium_stands_for_few_tokens_and_is_told_from_others() -> None:
    texts = []
    for seed in (1, 1, 2):
        data = base64.b64encode(Random(seed).randbytes(200_000)).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        for block in ({"type": "image", "source": source}, image):
            content = [block, {"type": "text", "text": LONG}]
            body = {"messages": [{"role": "user", "content": content}]}
            texts.append((await read(MESSAGES, body, engine="trtllm")).text)
    assert max(map(len, texts)) < 2 * len(LONG) < LIMITS.max_prompt_tokens * CHARS_PER_TOKEN
    assert texts[:2] == texts[2:4]
    for one, other in zip(texts[2:4], texts[4:], strict=True):
        assert LONG.encode() not in shared_by([one, other])


@pytest.mark.parametrize(("path", "turns"), CONVERSATIONS)
async def test_a_conversation_is_found_where_it_went_when_its_tokens_are_known_no_more(
    path: str, turns: Any, tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_sources, "LAST_SECONDS", 30.0)
    tables = f"[limits]\ntokenize-seconds = 60\n{QUIET}{PODS}"
    model = f'tokenizer-urls = ["{engine.url}"]'
    async with asking(tmp_path, tables=tables, model=model) as gateway:
        went = ""
        for body in turns():
            to, _ = await gateway.whole(json.dumps(body).encode(), b"{}", path=path)
            newest = await gateway.newest()
            assert newest.reason.startswith("Blind, by the bytes") == bool(went)
            if went:
                assert to.endpoints[0] == went
                assert newest.candidates[0].matched_tokens > len(LONG) // CHARS_PER_TOKEN
            went = to.endpoints[0]
