"""The worker over HTTP and ZMQ: answers, event bytes, replay, and its end as a process."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.lab.simworker.local_worker import LocalWorker
from warmpath.lab.local.cluster import Process, Worker, WorkerSettings

SETTINGS = WorkerSettings(blocks=100, block_size=4, speed=1000.0, vocab_size=2048)
IDS = list(range(20, 40))


@pytest.fixture
async def worker(model_folder: Path) -> AsyncIterator[LocalWorker]:
    options = (f"--tokenizer={model_folder}", "--topic=kv", "--adapter=tuned")
    async with LocalWorker.of(SETTINGS, *options) as worker:
        yield worker


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(http: aiohttp.ClientSession, worker: LocalWorker, path: str, body: Any) -> Any:
    async with http.post(f"http://{worker.address}{path}", json=body) as response:
        return response.status, await response.json()


async def generate(http: aiohttp.ClientSession, worker: LocalWorker, **fields: Any) -> Any:
    body = {"model": "demo", "prompt": IDS, "max_tokens": 6, "return_token_ids": True} | fields
    status, answer = await post(http, worker, "/v1/completions", body)
    assert status == 200, answer
    return answer


async def replayed(worker: LocalWorker, start: int) -> list[tuple[bytes, int, list[Any]]]:
    context = zmq.asyncio.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(worker.replay)
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        batches = []
        while True:
            empty, topic, sequence, payload = await dealer.recv_multipart()
            assert empty == b""
            if sequence == b"\xff" * 8:
                break
            number = int.from_bytes(sequence, "big")
            batches.append((topic, number, msgspec.msgpack.decode(payload)))
    context.term()
    return batches


async def test_a_prompt_seen_before_is_reported_cached(
    worker: LocalWorker, http: aiohttp.ClientSession
) -> None:
    first = await generate(http, worker)
    again = await generate(http, worker)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert first["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]
    assert first["usage"]["completion_tokens"] == 6


async def test_events_are_replayed_from_any_start_in_the_engines_own_form(
    worker: LocalWorker, http: aiohttp.ClientSession
) -> None:
    await generate(http, worker)
    batches = await replayed(worker, 0)
    assert [number for _, number, _ in batches] == list(range(len(batches)))
    topic, _, (_, [stored], rank) = batches[0]
    assert topic == b"kv"
    assert rank == 0
    assert list(stored) == [
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
        "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
    ]  # fmt: skip
    assert stored["token_ids"] == IDS
    assert stored["parent_block_hash"] is None
    assert stored["extra_keys"] == [None] * 5
    assert [number for _, number, _ in await replayed(worker, 1)] == list(range(1, len(batches)))
    assert await replayed(worker, 99) == []


async def test_live_events_arrive_as_topic_sequence_payload(
    worker: LocalWorker, http: aiohttp.ClientSession
) -> None:
    context = zmq.asyncio.Context()
    with context.socket(zmq.SUB) as live:
        live.setsockopt(zmq.SUBSCRIBE, b"kv")
        live.connect(worker.events)
        number = 0
        while not await live.poll(20):
            # A subscription takes a moment; what is published before it is lost.
            number += 1
            await generate(http, worker, prompt=[number % 1000] * 8)
        topic, sequence, payload = await live.recv_multipart()
    context.term()
    assert topic == b"kv"
    assert len(sequence) == 8
    assert msgspec.msgpack.decode(payload)[1][0]["type"] == "BlockStored"


@pytest.mark.parametrize("chat", [False, True])
async def test_a_streamed_answer_is_the_whole_one_in_parts(
    worker: LocalWorker, http: aiohttp.ClientSession, chat: bool
) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi there"}
    body = {"model": "demo", "max_tokens": 130, "return_token_ids": True} | prompt
    _, whole = await post(http, worker, path, body)
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    async with http.post(f"http://{worker.address}{path}", json=body | streaming) as response:
        lines = [line async for line in response.content if line.strip()]
    assert lines[-1] == b"data: [DONE]\n"
    chunks = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]
    *parts, last = chunks
    # A chat's first chunk says the role, and no tokens yet.
    tokens = [token for part in parts for token in part["choices"][0].get("token_ids", ())]
    assert tokens == whole["choices"][0]["token_ids"]
    assert len(parts) > 2
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 130


async def test_adapters_and_salts_have_caches_of_their_own(
    worker: LocalWorker, http: aiohttp.ClientSession
) -> None:
    async def cached(**fields: Any) -> int:
        answer = await generate(http, worker, **fields)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert await cached() == 0
    assert await cached(cache_salt="a") == 0
    assert await cached(model="tuned") == 0
    assert await cached(model="tuned") == 16
    assert await cached(cache_salt="a") == 16


async def test_a_reset_is_announced_with_the_next_step(
    worker: LocalWorker, http: aiohttp.ClientSession
) -> None:
    await generate(http, worker)
    before = len(await replayed(worker, 0))
    _, answer = await post(http, worker, "/reset_prefix_cache", None)
    assert answer == {"success": True}
    assert len(await replayed(worker, 0)) == before
    await generate(http, worker)
    events = (await replayed(worker, before))[0][2][1]
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/completions", {"model": "other", "prompt": [1]}, 404, "`other` does not exist"),
        ("/v1/completions", {"prompt": []}, 400, "prompt:"),
        ("/v1/completions", {"prompt": [1, 2048]}, 400, "must be 0 to 2047"),
        ("/v1/completions", {"prompt": [1], "max_tokens": 0}, 400, "max_tokens: at least 1"),
        ("/v1/completions", {"prompt": [1] * 500}, 400, "no room within max_model_len 396"),
        ("/v1/completions", {"prompt": [1], "max_tokens": 1 << 20}, 400, "max_model_len"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages:"),
        ("/v1/chat/completions", [], 400, "not a JSON object"),
    ],
)
async def test_bad_requests_are_refused_by_field(
    worker: LocalWorker,
    http: aiohttp.ClientSession,
    path: str,
    body: Any,
    status: int,
    message: str,
) -> None:
    got, answer = await post(http, worker, path, body)
    assert got == status
    assert message in answer["error"]["message"]


async def test_health_models_tokenize_and_metrics(
    worker: LocalWorker, http: aiohttp.ClientSession
) -> None:
    base = f"http://{worker.address}"
    async with http.get(f"{base}/health") as response:
        assert response.status == 200
    async with http.get(f"{base}/v1/models") as response:
        assert [one["id"] for one in (await response.json())["data"]] == ["demo", "tuned"]
    _, tokens = await post(http, worker, "/tokenize", {"prompt": "hello"})
    assert tokens["count"] == len(tokens["tokens"])
    await generate(http, worker)
    await generate(http, worker)
    async with http.get(f"{base}/metrics") as response:
        text = await response.text()
    assert 'vllm:num_requests_running{engine="0",model_name="demo"} 0.0' in text
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="demo"} 16.0' in text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_aborts_its_request(
    http: aiohttp.ClientSession, stream: bool
) -> None:
    # At this speed the answer would take ten minutes, far beyond the test's own time.
    slow = WorkerSettings(blocks=100, block_size=4, speed=0.01, vocab_size=2048)
    async with LocalWorker.of(slow) as worker:
        running = 'vllm:num_requests_running{engine="0",model_name="demo"}'

        async def until(line: str) -> None:
            text = ""
            while line not in text:
                await asyncio.sleep(0.01)
                async with http.get(f"http://{worker.address}/metrics") as metrics:
                    text = await metrics.text()

        body = {"model": "demo", "prompt": IDS, "max_tokens": 300, "stream": stream}
        url = f"http://{worker.address}/v1/completions"
        asking = asyncio.create_task(http.post(url, json=body))
        await until(f"{running} 1.0")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        if not asking.cancelled():
            (await asking).close()
        await until(f"{running} 0.0")


async def test_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    worker = Worker("w", Process("worker", tmp_path / "log"))
    await worker.start(SETTINGS)
    assert await worker.process.stop() == 0
