"""The cache reset, sleep at every level and in every mode, and drain."""

import asyncio

import pytest

from tests.lab.simworker.local_worker import IDS, LocalWorker

AWAKE = 'vllm:engine_sleep_state{engine="0",model_name="demo",sleep_state="awake"}'
DEEP = 'vllm:engine_sleep_state{engine="0",model_name="demo",sleep_state="discard_all"}'


async def test_a_reset_is_announced_with_the_next_step() -> None:
    async with LocalWorker() as worker:
        await worker.generate()
        before = len(await worker.replayed())
        assert await worker.post("/reset_prefix_cache") == (200, {"success": True})
        assert len(await worker.replayed()) == before
        assert await worker.cached() == 0
        [batch, *_] = await worker.replayed(before)
        assert [event["type"] for event in batch[1]] == ["AllBlocksCleared", "BlockStored"]


async def test_a_reset_fails_while_requests_run_unless_they_are_made_to_give_way() -> None:
    async with LocalWorker("--speed=20") as worker:
        asked = await worker.begun()
        while worker.worker.ranks[0].load().running == 0:
            await asyncio.sleep(0.001)
        before = len(await worker.replayed())
        assert await worker.post("/reset_prefix_cache") == (200, {"success": False})
        path = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
        assert await worker.post(path) == (200, {"success": True})
        worker.worker.slow_down(0.001)
        status, answer = await asked
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 300
        events = [event for batch in await worker.replayed(before) for event in batch[1]]
        cleared = events.index({"type": "AllBlocksCleared"})
        # Computed anew, from the prompt on.
        assert events[cleared + 1]["token_ids"][: len(IDS)] == IDS
        # What comes out is what would have come without the reset.
        assert (await worker.generate(max_tokens=300))["choices"] == answer["choices"]


async def test_asleep_new_requests_wait_and_the_cache_is_gone() -> None:
    async with LocalWorker() as worker:
        await worker.generate()
        assert await worker.post("/sleep") == (200, {"status": "sleeping", "level": 1})
        assert await worker.get("/is_sleeping") == (200, {"is_sleeping": True})
        assert await worker.metric(AWAKE) == 0.0
        asked = await worker.begun()
        assert await worker.metric('vllm:num_requests_waiting{engine="0",model_name="demo"}') == 1.0
        assert not asked.done()
        assert await worker.post("/wake_up") == (200, {"status": "awake", "tags": None})
        status, answer = await asked
        assert status == 200
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert await worker.metric(AWAKE) == 1.0


async def test_level_0_keeps_the_cache() -> None:
    async with LocalWorker() as worker:
        await worker.generate()
        await worker.post("/sleep?level=0")
        waiting = asyncio.create_task(worker.cached())
        answered = await worker.post("/wake_up?tags=scheduling")
        assert answered == (200, {"status": "awake", "tags": ["scheduling"]})
        assert await waiting == 16


async def test_memory_is_woken_tag_by_tag_and_only_then_requests_run() -> None:
    async with LocalWorker() as worker:
        await worker.post("/sleep?level=2")
        assert await worker.metric(DEEP) == 1.0
        asked = await worker.begun()
        for tags in ("scheduling", "nothing", "weights"):
            _, answer = await worker.post(f"/wake_up?tags={tags}")
            assert answer["status"] == "sleeping"
            assert await worker.metric(AWAKE) == 1.0, "as vLLM's gauge after any such call"
        assert not asked.done()
        _, answer = await worker.post("/wake_up?tags=kv_cache")
        assert answer["status"] == "awake"
        assert (await asked)[0] == 200


async def test_sleep_aborts_what_runs() -> None:
    async with LocalWorker("--speed=20") as worker:
        asked = await worker.begun(max_tokens=350)
        await worker.post("/sleep?mode=abort")
        status, answer = await asked
        assert status == 200
        assert answer["choices"][0]["finish_reason"] == "abort"
        assert answer["usage"]["completion_tokens"] < 350


async def test_sleep_may_wait_for_what_runs() -> None:
    async with LocalWorker("--speed=200") as worker:
        asked = await worker.begun()
        await worker.post("/sleep?mode=wait")
        status, answer = await asked
        assert (status, answer["usage"]["completion_tokens"]) == (200, 300)
        assert worker.worker.sleeping


async def test_every_rank_sleeps_at_once_and_wakes_though_one_is_waited_for() -> None:
    async with LocalWorker("--speed=20", "--data-parallel-size=2") as worker:
        asked = await worker.begun()
        falling = asyncio.create_task(worker.post("/sleep?mode=wait"))
        while not worker.worker.sleeping:
            await asyncio.sleep(0.001)
        assert [rank.paused for rank in worker.worker.ranks] == [True, True]
        await worker.post("/wake_up")
        worker.worker.slow_down(0.001)
        assert (await asked)[0] == 200
        assert (await falling)[0] == 200
        assert not any(rank.paused for rank in worker.worker.ranks)
        await worker.generate({"X-data-parallel-rank": "1"})


async def test_what_could_never_be_served_is_refused_when_the_worker_wakes() -> None:
    async with LocalWorker("--max-model-len=1000", "--engine=trtllm") as worker:
        await worker.post("/sleep")
        asked = await worker.begun(max_tokens=500)
        await worker.post("/wake_up")
        status, answer = await asked
        assert status == 400
        assert "130 blocks are needed" in answer["error"]["message"]


async def test_sleep_may_keep_what_runs_for_later() -> None:
    async with LocalWorker("--speed=20") as worker:
        asked = await worker.begun()
        await worker.post("/sleep?mode=keep")
        behind = await worker.begun(prompt=IDS[:8], max_tokens=2)
        assert worker.worker.ranks[0].load().running == 0
        worker.worker.slow_down(0.001)
        await worker.post("/wake_up")
        _, answer = await asked
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"] == (await worker.generate(max_tokens=300))["choices"]
        await behind


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/sleep?level=3", "level: 0, 1 or 2"),
        ("/sleep?level=deep", "level: 0, 1 or 2"),
        ("/sleep?mode=nap", "mode: one of abort, wait, keep"),
        ("/reset_prefix_cache?reset_running_requests=maybe", "reset_running_requests: is neither"),
    ],
)
async def test_bad_queries_are_refused(path: str, message: str) -> None:
    async with LocalWorker() as worker:
        status, answer = await worker.post(path)
        assert status == 400
        assert message in answer["error"]["message"]


async def test_draining_refuses_new_requests_and_waits_for_the_old() -> None:
    async with LocalWorker("--speed=100") as worker:
        asked = await worker.begun()
        assert (await worker.get("/health"))[0] == 200
        _, answer = await worker.post("/drain")
        assert answer == {"draining": True, "in_flight": 1}
        assert (await worker.get("/health"))[0] == 503
        status, refused = await worker.post("/v1/completions", {"prompt": IDS})
        assert (status, refused["error"]["type"]) == (503, "ServiceUnavailableError")
        _, answer = await worker.post("/drain?wait=true")
        assert answer["in_flight"] == 0
        assert (await asked)[0] == 200
