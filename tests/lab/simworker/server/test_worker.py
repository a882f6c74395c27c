"""The worker over HTTP and ZMQ: answers, event bytes, replay, and its end as a process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

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
