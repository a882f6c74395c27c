"""Completions and chats: batches, samples, streams, usage, and what is refused."""

import asyncio
import io
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.local_worker import IDS, LocalWorker

CHAT = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5}


@pytest.fixture
async def worker(model_folder: Path) -> AsyncIterator[LocalWorker]:
    options = (f"--tokenizer={model_folder}", "--lora-modules", "tuned=/adapters/tuned")
    async with LocalWorker(*options) as worker:
        yield worker


async def test_prompts_in_a_batch_and_their_samples_have_choices_of_their_own(
    worker: LocalWorker,
) -> None:
    prompts = [IDS, IDS[:9]]
    answer = await worker.generate(prompt=prompts, n=2)
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in choices] == [IDS, IDS, IDS[:9], IDS[:9]]
    assert choices[0]["token_ids"] == choices[1]["token_ids"] != choices[2]["token_ids"]
    # Prompts count once, whatever is sampled from them.
    assert answer["usage"]["prompt_tokens"] == 29
    assert answer["usage"]["completion_tokens"] == 24


async def test_texts_come_in_batches_too(worker: LocalWorker) -> None:
    answer = await worker.generate(prompt=["hello", "hello there"])
    _, tokens = await worker.post("/tokenize", {"prompt": "hello there"})
    assert answer["choices"][1]["prompt_token_ids"] == tokens["tokens"]


async def test_a_streamed_batch_says_the_same_as_the_whole_one(worker: LocalWorker) -> None:
    body: dict[str, Any] = {
        "prompt": [IDS, IDS[:9]], "n": 2, "max_tokens": 40, "return_token_ids": True,
    }  # fmt: skip
    _, whole = await worker.post("/v1/completions", body)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = await worker.stream("/v1/completions", body | {"stream_options": options})
    tokens: list[list[int]] = [[], [], [], []]
    text = ["", "", "", ""]
    for chunk in chunks:
        [choice] = chunk["choices"]
        index = choice["index"]
        assert ("prompt_token_ids" in choice) == (not tokens[index])
        tokens[index] += choice["token_ids"]
        text[index] += choice["text"]
        assert chunk["usage"]["completion_tokens"] >= len(tokens[index])
        assert (choice["finish_reason"] == "length") == (len(tokens[index]) == 40)
    assert tokens == [choice["token_ids"] for choice in whole["choices"]]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 160


async def test_a_chats_first_chunks_say_the_role_and_its_prompt(worker: LocalWorker) -> None:
    body = CHAT | {"n": 2, "return_token_ids": True}
    chunks = await worker.stream("/v1/chat/completions", body)
    _, whole = await worker.post("/v1/chat/completions", body)
    for index in (0, 1):
        [choice] = chunks[index]["choices"]
        assert choice["index"] == index
        assert choice["delta"] == {"role": "assistant", "content": ""}
        assert chunks[index]["prompt_token_ids"] == whole["prompt_token_ids"]
    choices = [chunk["choices"][0] for chunk in chunks[2:]]
    tokens = itertools.chain(*(one["token_ids"] for one in choices if one["index"] == 0))
    assert list(tokens) == whole["choices"][0]["token_ids"]
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert "usage" not in chunks[-1]


async def test_echo_begins_with_the_prompts_text_unless_ids_are_returned(
    worker: LocalWorker,
) -> None:
    plain = await worker.generate(prompt="hello there", return_token_ids=False)
    echoed = await worker.generate(prompt="hello there", return_token_ids=False, echo=True)
    answer = plain["choices"][0]["text"]
    assert echoed["choices"][0]["text"].endswith(answer)
    assert "hello there" in echoed["choices"][0]["text"].removesuffix(answer)
    body = {"prompt": "hello there", "max_tokens": 20, "echo": True}
    chunks = await worker.stream("/v1/completions", body)
    assert "hello there" in chunks[0]["choices"][0]["text"]
    assert not any("hello there" in chunk["choices"][0]["text"] for chunk in chunks[1:])
    with_ids = await worker.generate(prompt="hello there", echo=True)
    assert "hello there" not in with_ids["choices"][0]["text"]


async def test_a_stream_says_the_first_token_at_once_and_then_some_at_a_time(
    worker: LocalWorker,
) -> None:
    body = {"prompt": IDS, "max_tokens": 30, "return_token_ids": True, "stream_interval": 8}
    chunks = await worker.stream("/v1/completions", body)
    sizes = [len(chunk["choices"][0]["token_ids"]) for chunk in chunks]
    assert sum(sizes) == 30
    assert all(size >= 8 for size in sizes[1:-1])


async def test_salts_adapters_and_their_paths_have_caches_of_their_own(worker: LocalWorker) -> None:
    assert await worker.cached() == 0
    assert await worker.cached(cache_salt="a") == 0
    assert await worker.cached(cache_salt="a") == 16
    assert await worker.cached(model="tuned") == 0
    assert await worker.cached(model="tuned") == 16


async def test_prompt_logprobs_compute_the_whole_prompt(worker: LocalWorker) -> None:
    await worker.generate()
    assert await worker.cached() == 16
    assert await worker.cached(prompt_logprobs=1) == 0


async def test_what_only_shapes_probabilities_is_passed_over(worker: LocalWorker) -> None:
    plain = await worker.generate()
    shaped = await worker.generate(
        temperature=0.3, top_p=0.5, top_k=4, min_p=0.1, seed=7, frequency_penalty=1, logit_bias={"5": 2},
        stop=["."], stop_token_ids=[3], ignore_eos=True, min_tokens=2, user="me", logprobs=None,
        response_format={"type": "text"}, kv_transfer_params={"do_remote_decode": False}, n=None,
        vllm_xargs={"kv_cache_report_mode": "full"}, priority=0, something_else=1,
    )  # fmt: skip
    assert shaped["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]


async def test_an_answer_takes_the_callers_id(worker: LocalWorker) -> None:
    assert (await worker.generate(request_id="mine"))["id"] == "cmpl-mine"
    assert (await worker.generate({"X-Request-Id": "header"}))["id"] == "cmpl-header"
    assert (await worker.generate())["id"] != (await worker.generate())["id"]


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"model": "other"}, "model", "`other` does not exist"),
        ({"model": 5}, "model", "is not a string"),
        ({"prompt": None}, "prompt", "is needed"),
        ({"prompt": []}, "prompt", "is needed"),
        ({"prompt": ""}, "prompt", "is needed"),
        ({"prompt": ["a", [1]]}, "prompt", "is needed"),
        ({"prompt": [[1], []]}, "prompt", "is needed"),
        ({"prompt": [1, True]}, "prompt", "is needed"),
        ({"prompt": [[1]] * 1025}, "prompt", "at most 1024"),
        ({"prompt": [1, 1 << 40]}, "prompt", "token ids must be 0 to"),
        ({"prompt": [-1]}, "prompt", "token ids must be 0 to"),
        ({"prompt": [1] * 131072}, "prompt", "no room within max_model_len"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": "5"}, "max_tokens", "not a whole number"),
        ({"max_tokens": 1 << 20}, "max_tokens", "max_model_len"),
        ({"min_tokens": 9}, "min_tokens", "more than max_tokens 6"),
        ({"n": 0}, "n", "at least 1"),
        ({"n": 16385}, "n", "at most 16384"),
        ({"stream": "yes"}, "stream", "neither true nor false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "where stream is true"),
        ({"stream": True, "stream_options": 1}, "stream_options", "is not an object"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "where stream is true"),
        ({"prompt_logprobs": -2}, "prompt_logprobs", "at least -1"),
        ({"cache_salt": ""}, "cache_salt", "non-empty string"),
        ({"cache_salt": 5}, "cache_salt", "non-empty string"),
        ({"cache_salt": "a/b"}, "cache_salt", "no '@'"),
        ({"cache_salt": "a" * 129}, "cache_salt", "at most 128"),
        ({"priority": 1}, "priority", "must be 0"),
        ({"logprobs": 1}, "logprobs", "no such thing"),
        ({"suffix": "x"}, "suffix", "no such thing"),
        ({"response_format": {"type": "json_object"}}, "response_format", "no such thing"),
        ({"use_beam_search": True}, "use_beam_search", "no such thing"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "no such thing"),
        ({"kv_transfer_params": "x"}, "kv_transfer_params", "is not an object"),
        ({"vllm_xargs": {"kv_cache_report_mode": "all"}}, "vllm_xargs.kv_cache_report_mode", "one of"),
    ],
)  # fmt: skip
async def test_bad_completions_are_refused_by_field(
    worker: LocalWorker, fields: dict[str, Any], field: str, message: str
) -> None:
    body = {"prompt": IDS, "max_tokens": 6} | fields
    status, answer = await worker.post("/v1/completions", body)
    assert status == (404 if message.endswith("not exist") else 400)
    assert answer["error"]["code"] == status
    assert answer["error"]["param"] == field
    assert message in answer["error"]["message"]
    assert worker.worker.in_flight == 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"echo": True}, "echo"),
    ],
)
async def test_bad_chats_are_refused_by_field(
    worker: LocalWorker, fields: dict[str, Any], field: str
) -> None:
    status, answer = await worker.post("/v1/chat/completions", CHAT | fields)
    assert (status, answer["error"]["param"]) == (400, field)


async def test_more_than_fits_is_refused_and_leaves_nothing_behind(worker: LocalWorker) -> None:
    body = {"prompt": [IDS, [1] * 395], "max_tokens": 5}
    status, answer = await worker.post("/v1/completions", body)
    assert status == 400
    assert "max_model_len 396" in answer["error"]["message"]
    assert worker.worker.in_flight == 0


async def test_bodies_that_are_no_requests_are_refused(worker: LocalWorker) -> None:
    for data, message in (
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not JSON"),
        (b"[" * 9999, "not JSON"),
    ):
        async with worker.http.post("/v1/completions", data=data) as response:
            assert response.status == 400
            assert message in (await response.json())["error"]["message"]
    async with worker.http.post("/v1/completions", data=io.BytesIO(b" " * (65 << 20))) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == 413


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_aborts_its_request(stream: bool) -> None:
    # At this speed the answer would take ten minutes, far beyond the test's own time.
    async with LocalWorker("--speed=0.01") as worker:
        asking = await worker.begun(stream=stream)
        asking.cancel()
        while worker.worker.in_flight:
            await asyncio.sleep(0.01)


async def test_unknown_paths_are_refused_in_the_same_form(worker: LocalWorker) -> None:
    status, answer = await worker.get("/v2/nothing")
    assert (status, answer["error"]["type"]) == (404, "NotFoundError")


async def test_without_a_tokenizer_texts_are_refused() -> None:
    async with LocalWorker() as worker:
        for path, body in (
            ("/v1/completions", {"prompt": "hello"}),
            ("/v1/chat/completions", CHAT),
            ("/tokenize", {"prompt": "hello"}),
            ("/detokenize", {"tokens": [20]}),
        ):
            status, answer = await worker.post(path, body)
            assert status == 400
            assert "--tokenizer" in answer["error"]["message"]
        assert (await worker.generate(return_token_ids=False))["choices"][0]["text"].startswith(
            " t"
        )
