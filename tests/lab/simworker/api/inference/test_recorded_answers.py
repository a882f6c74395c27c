"""APIs beside completions and chats: the tokens, events and usage that a real engine's recording has."""

import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.simworker.local_worker import IDS, LocalWorker
from tests.recordings import TOKENIZER, VLLM_APIS
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.server.flight import Flight, Sink
from warmpath.router.inference_api.response import Usage, UsageReader


def lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


HEAD, *VLLM = lines(VLLM_APIS)
PATHS = ("/v1/messages", "/v1/responses", "/inference/v1/generate")
SERVED = [line for line in VLLM if line["path"] in PATHS and line["first"]["status"] == 200]


def named(line: dict[str, Any]) -> str:
    return f"{line['path']} {line['request'][40:120]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the recordings' model."""
    folder = tmp_path_factory.mktemp("recorded")
    tokenizer = json.loads(TOKENIZER.read_text(encoding="utf-8"))
    tokenizer["post_processor"] = HEAD["post_processor"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": HEAD["template"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def recorded_worker(folder: Path, *options: str) -> LocalWorker:
    return LocalWorker(f"--tokenizer={folder}", "--model=tiny", "--blocks=1000", *options)


@pytest.fixture
async def worker(folder: Path) -> AsyncIterator[LocalWorker]:
    async with recorded_worker(folder) as worker:
        yield worker


def watch_prompts(worker: LocalWorker) -> list[list[int]]:
    """Return a list that gets the tokens of each prompt that the worker computes from now on."""
    found: list[list[int]] = []
    submit = worker.worker.submit

    def noting(ask: Generation, sink: Sink, rank: int | None) -> Flight:
        found.append(list(ask.prompt))
        return submit(ask, sink, rank)

    worker.worker.submit = noting  # type: ignore[method-assign]
    return found


async def send(worker: LocalWorker, path: str, body: str | dict[str, Any]) -> tuple[int, str]:
    data = body if isinstance(body, str) else json.dumps(body)
    async with worker.http.post(path, data=data) as response:
        return response.status, await response.text()


def events(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_a_prompt_has_vllms_tokens_or_is_refused_by_name(worker: LocalWorker) -> None:
    found = watch_prompts(worker)
    refused: Counter[str] = Counter()
    for line in SERVED:
        status, _ = await send(worker, line["path"], line["request"])
        if status == 200:
            wanted = line.get("token_ids") or json.loads(line["request"])["token_ids"]
            assert found[-1] == wanted, named(line)
        else:
            assert status == 400, named(line)
            refused[line["path"]] += 1
    assert len(SERVED) == 103
    # References to tools, `tools: []`, thinking off, a system message among the others; unfinished
    # and rewritten items, tools that no template sees, truncation; texts for ids.
    assert refused == Counter({"/v1/messages": 5, "/v1/responses": 10, "/inference/v1/generate": 1})


STREAMED = [line for line in SERVED if json.loads(line["request"]).get("stream")]


async def test_a_stream_has_vllms_events_in_their_order(worker: LocalWorker) -> None:
    for line in STREAMED:
        _, text = await send(worker, line["path"], line["request"])
        recorded = events(line["first"]["body"])
        sent = events(text)
        # One delta for each piece: there may be fewer pieces than tokens.
        kinds = list(dict.fromkeys(event.get("type") for event in sent))
        assert kinds == list(dict.fromkeys(event.get("type") for event in recorded)), named(line)
        names = [text for text in text.splitlines() if text.startswith("event: ")]
        assert names == [f"event: {event['type']}" for event in sent if "type" in event]
        by_kind = {event.get("type"): event for event in recorded}
        for event in sent:
            assert event.keys() <= by_kind[event.get("type")].keys()
        assert ("[DONE]" in text) == ("[DONE]" in line["first"]["body"])


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": "sea " * 30}]}),
        ("/v1/responses", {"max_output_tokens": 4, "input": "sea " * 30}),
        ("/inference/v1/generate", {"token_ids": IDS, "sampling_params": {"max_tokens": 4}}),
    ],
)
async def test_an_answer_reports_the_usage_that_a_gateway_reads(
    worker: LocalWorker, path: str, body: dict[str, Any], *, is_streamed: bool
) -> None:
    found = watch_prompts(worker)
    body = body | {"model": "tiny", "stream": is_streamed}
    if path == "/inference/v1/generate" and is_streamed:
        body |= {"stream_options": {"include_usage": True}}
    for is_repeated in (False, True):
        status, text = await send(worker, path, body)
        assert status == 200, text
        reader = UsageReader("text/event-stream" if is_streamed else "application/json")
        reader.feed(text.encode())
        reader.end()
        [prompt] = {tuple(one) for one in found}
        held = (len(prompt) - 1) // 4 * 4
        assert reader.usage == Usage(len(prompt), held if is_repeated else 0, 4)
        assert reader.first_token_seen == is_streamed


async def test_sglangs_answers_are_whole_so_far_and_its_adapter_is_a_path(folder: Path) -> None:
    options = ("--dialect=sglang", "--lora-modules", "tuned=/adapters/tuned")
    async with recorded_worker(folder, *options) as worker:
        found = watch_prompts(worker)
        body = {"text": "sea " * 30, "sampling_params": {"max_new_tokens": 4}, "stream": True}
        _, text = await send(worker, "/generate", body)
        *_, before, last = events(text)
        assert last["text"].startswith(before["text"])
        assert last["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert (before["meta_info"]["finish_reason"], len(last["output_ids"])) == (None, 4)
        assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
        [prompt] = found
        for lora, cached in (("tuned", 0), ("tuned", (len(prompt) - 1) // 4 * 4)):
            body = {
                "input_ids": prompt,
                "lora_path": lora,
                "sampling_params": {"max_new_tokens": 4},
            }
            _, text = await send(worker, "/generate", body)
            reader = UsageReader("application/json")
            reader.feed(text.encode())
            reader.end()
            assert reader.usage == Usage(len(prompt), cached, 4)


@pytest.mark.parametrize(
    ("path", "body", "named_in_error"),
    [
        ("/v1/messages", {"messages": []}, "max_tokens"),
        ("/v1/messages", {"messages": [], "max_tokens": 1 << 40}, "max_tokens"),
        ("/v1/messages", {"messages": 5, "max_tokens": 4}, "messages"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 4}, "image"),
        ("/v1/responses", {"input": 5}, "input"),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 0}, "max_output_tokens"),
        ("/v1/responses", {"input": "Hi", "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_object"}}}, "format"),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0]"),
        ("/inference/v1/generate", {"token_ids": []}, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [1], "features": {"a": 1}}, "features"),
    ],
)  # fmt: skip
async def test_what_cannot_be_kept_is_refused_by_its_name(
    worker: LocalWorker, path: str, body: dict[str, Any], named_in_error: str
) -> None:
    status, text = await send(worker, path, body)
    assert status == 400
    answer = json.loads(text)
    assert named_in_error in answer["error"]["message"]
    assert answer.get("type") == ("error" if path == "/v1/messages" else None)


async def test_each_engine_serves_its_own_paths_only(worker: LocalWorker, folder: Path) -> None:
    assert (await send(worker, "/generate", {}))[0] == 404
    async with recorded_worker(folder, "--dialect=sglang") as sglang:
        for path in PATHS:
            assert (await send(sglang, path, {}))[0] == 404
        status, text = await send(sglang, "/generate", {"text": "a", "input_ids": [1]})
        assert (status, "input_ids" in text) == (400, True)
    async with recorded_worker(folder, "--engine=trtllm") as trtllm:
        for path in (*PATHS, "/generate"):
            assert (await send(trtllm, path, {}))[0] == 404
