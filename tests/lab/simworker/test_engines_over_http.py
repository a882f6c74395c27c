"""Every engine behind the server: what it caches is reported, counted, forgotten and announced."""

import asyncio
from typing import Any

import pytest

from tests.lab.simworker.local_worker import LocalWorker

ENGINES = ("vllm-v1", "trtllm")
FIRST = list(range(100, 140))
"""Ten blocks of four: half of what `FULL` has."""
OTHERS = [list(range(start, start + 40)) for start in (200, 300, 400)]
FULL = ("--blocks=21", "--cpu-blocks=100", "--max-model-len=64")
ALL = "/reset_prefix_cache?reset_external=true"


async def push_out(worker: LocalWorker) -> None:
    """Fill the GPU with other prompts."""
    for prompt in OTHERS:
        await worker.generate(prompt=prompt)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_prompt_seen_before_is_cached_until_the_cache_is_reset(engine: str) -> None:
    async with LocalWorker(f"--engine={engine}", "--metrics=vllm") as worker:
        first = await worker.generate()
        again = await worker.generate()
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        # Of twenty tokens; that of the last is computed in any case.
        found = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert found == {"vllm-v1": 16, "trtllm": 19}[engine]
        assert first["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]
        for name, value in (
            ("prefix_cache_queries_total", 40), ("prefix_cache_hits_total", found),
            ("num_requests_running", 0), ("kv_cache_usage_perc", 0),
        ):  # fmt: skip
            line = f'vllm:{name}{{engine="0",model_name="demo"}}'
            assert await worker.metric(line) == value, name
        assert await worker.post("/reset_prefix_cache") == (200, {"success": True})
        assert await worker.cached() == 0


@pytest.mark.parametrize(("engine", "version"), [("vllm-v1", "0.32.0"), ("trtllm", "1.2.0")])
async def test_an_engine_says_who_it_is_and_names_the_sockets_that_it_has(
    engine: str, version: str
) -> None:
    async with LocalWorker(f"--engine={engine}", "--data-parallel-size=2") as worker:
        assert await worker.get("/version") == (200, {"version": version})
        named = {"events", "replay", "ranks"} if engine == "vllm-v1" else set()
        assert set(worker.ready) == {"address"} | named
        _, sources = await worker.get("/kv_event_sources")
        assert len(sources) == (2 if named else 0)


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_answer_goes_on_after_a_reset_as_it_would_have(engine: str) -> None:
    async with LocalWorker(f"--engine={engine}") as worker:
        alone = await worker.generate(max_tokens=60)
        worker.worker.slow_down(20)
        asked = asyncio.create_task(worker.generate(max_tokens=60))
        while not worker.worker.ranks[0].load().running:
            await asyncio.sleep(0.001)
        for _ in range(5):
            await worker.post("/reset_prefix_cache?reset_running_requests=true")
            await asyncio.sleep(0.005)
        await worker.post("/sleep?mode=keep")
        await worker.post("/wake_up")
        worker.worker.slow_down(1)
        assert (await asked)["choices"] == alone["choices"]


@pytest.mark.parametrize("engine", ENGINES)
async def test_without_prefix_caching_nothing_is_found(engine: str) -> None:
    async with LocalWorker(f"--engine={engine}", "--no-enable-prefix-caching") as worker:
        assert [await worker.cached(), await worker.cached()] == [0, 0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("blocks", [2, 100, 150])
async def test_the_longest_request_that_models_tells_is_served(engine: str, blocks: int) -> None:
    async with LocalWorker(f"--engine={engine}", f"--blocks={blocks}") as worker:
        _, models = await worker.get("/v1/models")
        longest = models["data"][0]["max_model_len"]
        assert longest == (blocks - 1) * 4
        answer = await worker.generate(prompt=[7, 8], max_tokens=longest - 2)
        assert answer["usage"]["total_tokens"] == longest


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_burst_beyond_the_cache_is_served_whole(engine: str) -> None:
    async with LocalWorker(f"--engine={engine}", *FULL, "--max-num-seqs=8") as worker:
        alone = await worker.generate(prompt=FIRST, max_tokens=20)
        bodies = [{"prompt": prompt, "max_tokens": 20} for prompt in [FIRST, *OTHERS] * 5]
        answers = await asyncio.gather(*(worker.generate(**body) for body in bodies))
        assert answers[0]["choices"] == alone["choices"]
        assert {answer["usage"]["completion_tokens"] for answer in answers} == {20}
        rank: Any = worker.worker.ranks[0]
        rank.check()
        rank.engine.check()


@pytest.mark.parametrize("engine", ["vllm-v1", "trtllm"])
async def test_what_left_the_gpu_is_found_in_host_memory_until_that_is_reset_too(
    engine: str,
) -> None:
    async with LocalWorker(f"--engine={engine}", *FULL) as worker:
        await worker.generate(prompt=FIRST)
        await push_out(worker)
        assert await worker.cached(prompt=FIRST) >= 36
        await push_out(worker)
        assert await worker.post(ALL) == (200, {"success": True})
        assert await worker.cached(prompt=FIRST) == 0


async def test_a_reset_of_the_gpu_alone_leaves_host_memory() -> None:
    async with LocalWorker(*FULL) as worker:
        await worker.generate(prompt=FIRST)
        await worker.post("/reset_prefix_cache")
        assert await worker.cached(prompt=FIRST) >= 36


async def test_without_host_memory_what_left_the_gpu_is_gone() -> None:
    async with LocalWorker(*FULL, "--cpu-blocks=0") as worker:
        await worker.generate(prompt=FIRST)
        await push_out(worker)
        assert await worker.cached(prompt=FIRST) == 0


async def test_sleep_empties_host_memory_too() -> None:
    async with LocalWorker(*FULL) as worker:
        await worker.generate(prompt=FIRST)
        await worker.post("/sleep")
        await worker.post("/wake_up")
        assert await worker.cached(prompt=FIRST) == 0


async def test_a_request_that_loads_is_withdrawn_before_the_cache_goes() -> None:
    async with LocalWorker(*FULL, "--bytes-per-token=200000000") as worker:
        engine: Any = worker.worker.ranks[0].engine
        await worker.generate(prompt=FIRST)
        await push_out(worker)
        worker.worker.slow_down(1000)
        loading = asyncio.create_task(worker.post("/v1/completions", {"prompt": FIRST}))
        while not engine.scheduler.kv_holding_waiting:
            await asyncio.sleep(0.001)
        assert (await worker.post("/sleep?mode=keep"))[0] == 200
        worker.worker.slow_down(1)
        assert not engine.scheduler.connector.manager.chunk_ids()
        await worker.post("/wake_up")
        status, answer = await loading
        assert status == 200
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_drafter_gives_up_the_last_block_of_a_hit() -> None:
    async with LocalWorker("--eagle") as worker:
        await worker.generate()
        assert await worker.cached() == 12


async def test_tensorrts_events_are_fetched_once() -> None:
    async with LocalWorker("--engine=trtllm") as worker:
        await worker.generate()
        _, events = await worker.post("/kv_cache_events")
        assert [event["data"]["type"] for event in events][:2] == ["created", "stored"]
        assert await worker.post("/kv_cache_events") == (200, [])
        line = 'trtllm_time_to_first_token_seconds_count{engine_type="trtllm",model_name="demo"}'
        assert await worker.metric(line) == 1


async def test_each_window_of_trtllm_has_blocks_and_events_of_its_own() -> None:
    groups = "--kv-groups=full:4,window:4:16"
    options = "--engine=trtllm", groups, "--blocks=32", "--max-model-len=100"
    async with LocalWorker(*options) as worker:
        prompt = list(range(100, 140))
        await worker.generate(prompt=prompt)
        assert await worker.cached(prompt=prompt) >= 36
        _, events = await worker.post("/kv_cache_events")
        created = {
            event["window_size"]: event["data"]["num_blocks_per_cache_level"]
            for event in events
            if event["data"]["type"] == "created"
        }
        assert created == {16: [32, 0], 100: [32, 0]}
        stored = {event["window_size"] for event in events if event["data"]["type"] == "stored"}
        assert stored == {16, 100}


async def test_served_trtllm_keeps_blocks_of_high_priority_until_their_time_is_over() -> None:
    options = "--engine=trtllm", "--blocks=28", "--max-model-len=64"
    kept = range(100, 116)

    async def found(*more: str) -> list[int]:
        """Return what is found of a prompt after others, and after others again."""
        async with LocalWorker(*options, *more) as worker:
            await worker.generate(prompt=FIRST)
            ends = []
            for _ in range(2):
                await push_out(worker)
                ends.append(await worker.cached(prompt=[*kept, 1]))
            return ends

    # Four of the ten blocks wish to stay; the others go as without a wish.
    assert await found() == [0, 0]
    assert await found("--kv-cache-retention=0-16:80") == [16, 16]
    # A modelled second is a millisecond here.
    assert await found("--kv-cache-retention=0-16:80:1") == [0, 0]
