"""Models, tokens, health, metrics in every engine's names, event sources, ranks, and `/faults`.

A crash is in `test_processes_of_workers.py`.
"""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.lab.simworker.local_worker import IDS, LocalWorker
from warmpath.lab.simworker import build_engine
from warmpath.lab.simworker.server.worker import Worker


async def test_adapters_are_children_of_the_model() -> None:
    async with LocalWorker("--adapter=short", "--lora-modules", "long=/x/long") as worker:
        _, models = await worker.get("/v1/models")
        cards = [(card["id"], card["parent"], card["root"]) for card in models["data"]]
        assert cards == [
            ("demo", None, "demo"), ("short", "demo", "short"), ("long", "demo", "/x/long"),
        ]  # fmt: skip
        assert models["data"][0]["max_model_len"] == 99 * 4


async def test_adapters_come_and_go_while_it_serves() -> None:
    async with LocalWorker() as worker:
        body: dict[str, Any] = {"lora_name": "new", "lora_path": "/x/new"}
        status, said = await worker.post("/v1/load_lora_adapter", body)
        assert (status, said) == (200, "Success: LoRA adapter 'new' added successfully.")
        assert await worker.cached(model="new") == 0
        [batch, *_] = await worker.replayed()
        assert (batch[1][0]["lora_name"], batch[1][0]["lora_id"]) == ("new", 1)
        assert (await worker.post("/v1/load_lora_adapter", body))[0] == 400
        assert (await worker.post("/v1/load_lora_adapter", body | {"load_inplace": True}))[0] == 200
        assert (await worker.post("/v1/unload_lora_adapter", {"lora_name": "new"}))[0] == 200
        assert (await worker.post("/v1/unload_lora_adapter", {"lora_name": "new"}))[0] == 404
        assert (await worker.post("/v1/completions", {"model": "new", "prompt": IDS}))[0] == 404


async def test_text_goes_to_ids_and_back(model_folder: Path) -> None:
    async with LocalWorker(f"--tokenizer={model_folder}") as worker:
        _, told = await worker.post("/tokenize", {"prompt": "hello", "return_token_strs": True})
        assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
        _, text = await worker.post("/detokenize", {"tokens": told["tokens"]})
        assert "hello" in text["prompt"]
        messages = {"messages": [{"role": "user", "content": "hello"}]}
        _, chat = await worker.post("/tokenize", messages)
        _, text = await worker.post("/detokenize", {"tokens": chat["tokens"]})
        _, rendered = await worker.post("/v1/chat/completions/render", messages)
        assert rendered["token_ids"] == chat["tokens"]
        _, rendered = await worker.post("/v1/completions/render", {"prompt": ["hello", "hello"]})
        assert [one["token_ids"] for one in rendered] == [told["tokens"]] * 2
        # Special tokens are part of the exact text.
        assert "<s>" in text["prompt"]
        for body in ({"tokens": [1 << 30]}, {"tokens": ["a"]}, {}):
            assert (await worker.post("/detokenize", body))[0] == 400
        assert (await worker.post("/tokenize", {}))[0] == 400


async def test_what_probes_ask() -> None:
    async with LocalWorker("--dialect=vllm-0.23.1") as worker:
        assert (await worker.get("/ping"))[0] == 200
        assert await worker.get("/version") == (200, {"version": "0.23.1"})
        assert await worker.get("/load") == (200, {"server_load": 0})
        _, sources = await worker.get("/kv_event_sources")
        assert sources == {
            "0": {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": worker.ready["events"],
                "replay_endpoint": worker.ready["replay"],
                "buffer_steps": 10000,
                "hwm": 100000,
                "max_queue_size": 0,
                "topic": "kv",
            }
        }


async def test_vllms_metrics_are_counted_and_timed() -> None:
    async with LocalWorker("--prefix-caching-hash-algo=sha256_cbor") as worker:
        await worker.generate()
        await worker.generate()
        at = '{engine="0",model_name="demo"}'
        for name, value in (
            ("num_requests_running", 0.0), ("num_requests_waiting", 0.0),
            ("prefix_cache_queries_total", 40.0), ("prefix_cache_hits_total", 16.0),
            ("num_preemptions_total", 0.0), ("prompt_tokens_total", 40.0),
            ("generation_tokens_total", 12.0), ("time_to_first_token_seconds_count", 2.0),
            ("e2e_request_latency_seconds_count", 2.0),
        ):  # fmt: skip
            assert await worker.metric(f"vllm:{name}{at}") == value, name
        finished = (
            'vllm:request_success_total{engine="0",finished_reason="length",model_name="demo"}'
        )
        assert await worker.metric(finished) == 2.0
        config = (
            'vllm:cache_config_info{block_size="4",enable_prefix_caching="True",engine="0",'
            'num_gpu_blocks="100",prefix_caching_hash_algo="sha256_cbor"}'
        )
        assert await worker.metric(config) == 1.0


async def test_a_cache_that_finds_nothing_is_no_secret() -> None:
    async with LocalWorker("--no-enable-prefix-caching") as worker:
        _, text = await worker.get("/metrics")
        assert 'enable_prefix_caching="False"' in text


async def test_sglang_has_its_own_names() -> None:
    async with LocalWorker("--dialect=sglang") as worker:
        await worker.generate()
        await worker.generate()
        at = '{dp_rank="0",model_name="demo"}'
        assert await worker.metric(f"sglang:num_running_reqs{at}") == 0.0
        assert await worker.metric(f"sglang:num_queue_reqs{at}") == 0.0
        assert await worker.metric(f"sglang:token_usage{at}") == 0.0
        assert await worker.metric(f"sglang:cache_hit_rate{at}") == 16 / 40
        assert await worker.metric(f"sglang:num_requests_total{at}") == 2.0
        first, second, *_ = await worker.replayed()
        assert first[1:] == [[{"type": "AllBlocksCleared"}], 0]
        assert second[1][0]["type"] == "BlockStored"
        assert "extra_keys" not in second[1][0]


async def test_ranks_have_engines_streams_and_metrics_of_their_own() -> None:
    async with LocalWorker("--data-parallel-size=2") as worker:
        one = {"X-data-parallel-rank": "1"}
        await worker.generate(one)
        await worker.generate(one)
        hits = 'vllm:prefix_cache_hits_total{engine="%d",model_name="demo"}'
        assert await worker.metric(hits % 0) == 0.0
        assert await worker.metric(hits % 1) == 16.0
        assert await worker.replayed(rank=0) == []
        batches = await worker.replayed(rank=1)
        assert batches
        assert {rank for _, _, rank in batches} == {1}
        _, sources = await worker.get("/kv_event_sources")
        assert [sources[rank]["endpoint"] for rank in "01"] == [
            rank["events"] for rank in worker.ready["ranks"]
        ]
        body = {"prompt": IDS, "max_tokens": 1}
        headers = {"X-data-parallel-rank": "2"}
        status, answer = await worker.post("/v1/completions", body, **headers)
        assert status == 400
        assert "out of range [0, 2)" in answer["error"]["message"]


async def test_without_a_rank_requests_spread() -> None:
    async with LocalWorker("--data-parallel-size=3", "--speed=20") as worker:
        body = {"prompt": IDS, "max_tokens": 20}
        asked = [asyncio.create_task(worker.post("/v1/completions", body)) for _ in range(6)]
        while worker.worker.in_flight < 6:
            await asyncio.sleep(0.001)
        assert [rank.in_flight for rank in worker.worker.ranks] == [2, 2, 2]
        worker.worker.slow_down(0.001)
        await asyncio.gather(*asked)


async def test_events_that_are_fetched_come_once_and_with_their_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetch(engine: Any) -> list[dict[str, Any]]:
        return [{"event_id": 0, "blocks": engine.manager.block_pool.get_num_free_blocks()}]

    kind = dataclasses.replace(build_engine.ENGINES["vllm-v1"], fetch_events=fetch)
    monkeypatch.setitem(build_engine.ENGINES, "vllm-v1", kind)
    async with LocalWorker("--data-parallel-size=2") as worker:
        _, events = await worker.post("/kv_cache_events")
        assert [event["attention_dp_rank"] for event in events] == [0, 1]
    async with LocalWorker() as worker:
        assert await worker.post("/kv_cache_events") == (200, [{"event_id": 0, "blocks": 99}])


async def test_nothing_is_left_running_behind() -> None:
    async with LocalWorker("--data-parallel-size=2") as worker:
        await worker.generate()
        await worker.post("/faults", {"restart": True})
        await worker.generate()
        await worker.post("/sleep")
        await worker.post("/wake_up")
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left


async def test_events_that_are_sent_cannot_be_fetched() -> None:
    async with LocalWorker() as worker:
        assert (await worker.post("/kv_cache_events"))[0] == 404


async def switch(worker: LocalWorker, **faults: Any) -> Any:
    status, answer = await worker.post("/faults", faults)
    assert status == 200, answer
    return answer


async def test_a_hung_engine_answers_nothing_and_looks_healthy() -> None:
    async with LocalWorker() as worker:
        await switch(worker, hang=True)
        asked = await worker.begun()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asked), 0.05)
        assert await worker.replayed() == []
        assert (await worker.get("/health"))[0] == 200
        await switch(worker, hang=False)
        assert (await asked)[0] == 200
        assert await worker.replayed()


async def test_a_client_that_leaves_a_hung_engine_is_forgotten() -> None:
    async with LocalWorker() as worker:
        await switch(worker, hang=True)
        asked = await worker.begun()
        asked.cancel()
        while worker.worker.in_flight:
            await asyncio.sleep(0.001)


async def test_a_restart_resets_connections_and_begins_again_from_nothing() -> None:
    async with LocalWorker("--speed=1", "--adapter=own") as worker:
        worker.worker.slow_down(0.001)
        await worker.generate()
        await worker.post("/v1/load_lora_adapter", {"lora_name": "later", "lora_path": "x"})
        worker.worker.slow_down(1000.0)
        asked = await worker.begun()
        await switch(worker, restart=True, slow=0.001, hang=True)
        with pytest.raises(aiohttp.ClientError):
            await asked
        assert (await worker.get("/faults"))[1]["hang"] is False
        assert await worker.replayed() == []
        _, models = await worker.get("/v1/models")
        assert [card["id"] for card in models["data"]] == ["demo", "own"]
        queries = 'vllm:prefix_cache_queries_total{engine="0",model_name="demo"}'
        assert await worker.metric(queries) == 0.0
        assert await worker.cached() == 0
        assert await worker.replayed()
        assert worker.worker.in_flight == 0


async def test_spoiled_events_are_counted_and_replay_has_them() -> None:
    async with LocalWorker() as worker:
        await switch(worker, events={"drop_next": 1, "duplicate": 1.0})
        await worker.generate()
        _, faults = await worker.get("/faults")
        [counts] = faults["batches"]
        batches = len(await worker.replayed())
        assert counts["taken"] == batches
        assert counts["drop"] == 1
        assert counts["sent"] == 2 * (batches - 1)
        assert faults["events"]["duplicate"] == 1.0
        assert faults["events"]["drop_next"] == 0


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"explode": True}, "explode: is not a fault; the faults are crash"),
        ({"slow": 0}, "slow: a number above 0"),
        ({"slow": "very"}, "slow: a number above 0"),
        ({"hang": 1}, "hang: is neither true nor false"),
        ({"slow": 5.0, "restart": 1}, "restart: is neither true nor false"),
        ({"events": {"drop": 2}}, "events.drop: a number from 0 to 1"),
        ({"events": []}, "events: is not an object"),
    ],
)
async def test_faults_that_cannot_be_are_refused_and_nothing_happens(
    faults: dict[str, Any], message: str
) -> None:
    async with LocalWorker() as worker:
        before = (await worker.get("/faults"))[1]
        status, answer = await worker.post("/faults", {"crash": True} | faults)
        assert status == 400
        assert message in answer["error"]["message"]
        assert (await worker.get("/faults"))[1] == before


async def test_faults_can_be_there_from_the_start() -> None:
    options = ("--fault-drop=0.5", "--fault-seed=3", "--fault-slow=7", "--fault-delay-seconds=1")
    async with LocalWorker(*options) as worker:
        _, faults = await worker.get("/faults")
        assert faults["slow"] == 7.0
        assert faults["events"]["drop"] == 0.5
        assert faults["events"]["seed"] == 3


async def test_a_hang_and_a_restart_can_come_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LocalWorker("--fault-hang-after=0.02") as worker:
        while not worker.worker.hung:
            await asyncio.sleep(0.005)
    restarted = asyncio.Event()
    monkeypatch.setattr(Worker, "restart", lambda _: restarted.set())
    async with LocalWorker("--fault-restart-after=0.05"):
        await restarted.wait()


async def test_without_leave_there_are_no_switches() -> None:
    async with LocalWorker(faults=False) as worker:
        assert (await worker.get("/faults"))[0] == 404
        assert (await worker.post("/faults", {"crash": True}))[0] == 404
