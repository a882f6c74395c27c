"""Engines' own recordings: a request's tokens are the engine's, also as a router counts them; a response tells its usage.

`tests/vllm/record_apis.py` of commit 7b94846c made them with a running vLLM, `tests/sglang/record_apis.py` with SGLang's code.
"""

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.recordings import TOKENIZER
from tests.router.inference_api.recorded_apis import HEAD, SGLANG, VLLM, Reading, named
from tests.router.running_router import running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.inference_api.response import UsageReader

BLOCK = 32
SERVED = [line for line in VLLM if line["first"]["status"] == 200]
reading_of = cache(Reading)
MAY_BE_UNREAD = ("the engine's tokens are not known", "the body has 2 prompts")


@pytest.mark.parametrize("line", SERVED, ids=named)
async def test_a_prompt_that_is_read_has_vllms_tokens(line: dict[str, Any]) -> None:
    reading = reading_of("vllm")
    request = await reading.read(line)
    fields = json.loads(line["request"])
    assert request.model == "tiny"
    if request.prompt is None:
        assert request.problem.startswith(MAY_BE_UNREAD)
        assert request.estimated_tokens > 0
        return
    assert not request.problem
    assert await reading.token_ids(request) == line["token_ids"]
    assert request.prompt.cache_salt == "" or request.prompt.cache_salt == fields["cache_salt"]


async def test_the_router_counts_the_tokens_that_vllm_counted(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    tokenizer = json.loads(TOKENIZER.read_text(encoding="utf-8"))
    tokenizer["post_processor"] = HEAD["post_processor"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": HEAD["template"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tables = """
        [limits]
        tokenize-seconds = 100
        [[models]]
        name = "tiny"
        tokenizer = "tiny"
        """
    reading = reading_of("vllm")
    async with running_router(tmp_path, tables, metrics="") as (_, channel):
        stub = router_pb2_grpc.RouterStub(channel)
        for line in SERVED:
            request = await reading.read(line)
            if request.prompt is not None:
                answer = await stub.Score(pb.ScoreRequest(prompt=request.prompt))
                assert answer.prompt_tokens == len(line["token_ids"]), line["request"]


async def test_few_of_vllms_requests_are_not_read() -> None:
    unread: Counter[str] = Counter()
    for line in SERVED:
        unread[line["path"]] += (await reading_of("vllm").read(line)).prompt is None
    # `tools: []`; a namespace, tools that templates see in another form or not at all, truncation.
    assert unread == Counter({"/v1/messages": 1, "/v1/responses": 6})


@pytest.mark.parametrize("line", SGLANG, ids=named)
async def test_a_prompt_that_is_read_has_sglangs_tokens(line: dict[str, Any]) -> None:
    if line["path"] == "/v1/chat/completions" or "token_ids" not in line:
        pytest.skip("chats are rendered as vLLM renders them; SGLang refuses the others")
    reading = reading_of("sglang")
    request = await reading.read(line)
    if request.prompt is None:
        assert request.problem.startswith("the engine")
    else:
        assert await reading.token_ids(request) == line["token_ids"]


async def test_many_of_sglangs_requests_are_read() -> None:
    read = [(await reading_of("sglang").read(line)).prompt is not None for line in SGLANG]
    assert sum(read) >= 39


@pytest.mark.parametrize("line", SERVED, ids=named)
async def test_a_response_tells_what_the_prediction_told(line: dict[str, Any]) -> None:
    fields = json.loads(line["request"])
    is_stream = fields.get("stream", False)
    prompt = line.get("token_ids")
    for sent, is_repeated in ((line["first"], False), (line["again"], True)):
        reader = UsageReader(sent["content_type"])
        reader.feed(sent["body"].encode())
        reader.end()
        usage = reader.usage
        assert reader.first_token_seen == is_stream
        if is_stream and "completions" in line["path"] and "stream_options" not in fields:
            assert usage.prompt_tokens is None
            continue
        assert usage.output_tokens == 4 * fields.get("n", 1)
        if prompt is None:
            continue
        assert usage.prompt_tokens == len(prompt)
        if is_repeated:
            assert usage.cached_tokens == (len(prompt) - 1) // BLOCK * BLOCK
        elif "n" not in fields:
            # Of two samples, the engine tells the cached tokens of either.
            assert usage.cached_tokens == 0
