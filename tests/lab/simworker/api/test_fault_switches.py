"""/faults: hang, slow, restart, spoiled events; a crash is in test_processes_of_workers.py."""

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.lab.simworker.local_worker import IDS, LocalWorker
from warmpath.lab.simworker.server.worker import Worker


async def switch(worker: LocalWorker, **faults: Any) -> Any:
    status, answer = await worker.post("/faults", faults)
    assert status == 200, answer
    return answer


async def begun(worker: LocalWorker, **fields: Any) -> asyncio.Task[Any]:
    before = worker.worker.in_flight
    body = {"prompt": IDS, "max_tokens": 50} | fields
    asked = asyncio.create_task(worker.post("/v1/completions", body))
    while worker.worker.in_flight == before:
        await asyncio.sleep(0.001)
    return asked


async def test_a_hung_engine_answers_nothing_and_looks_healthy() -> None:
    async with LocalWorker() as worker:
        await switch(worker, hang=True)
        asked = await begun(worker)
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
        asked = await begun(worker)
        asked.cancel()
        while worker.worker.in_flight:
            await asyncio.sleep(0.001)


async def test_a_restart_resets_connections_and_begins_again_from_nothing() -> None:
    async with LocalWorker("--speed=1", "--adapter=own") as worker:
        worker.worker.slow_down(0.001)
        await worker.generate()
        await worker.post("/v1/load_lora_adapter", {"lora_name": "later", "lora_path": "x"})
        worker.worker.slow_down(1000.0)
        asked = await begun(worker)
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
