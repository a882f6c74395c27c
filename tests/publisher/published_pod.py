"""A simulated worker in the test's own event loop, with a publisher beside it as a process."""

import json
from pathlib import Path
from typing import Self

import aiohttp

from router.commands.local.cluster import MODEL, Process, WorkerSettings
from router.commands.local.held_ports import HOST, HeldPorts
from tests.simworker.local_worker import LocalWorker

SETTINGS = WorkerSettings(blocks=400, block_size=16, speed=1000.0, vocab_size=32000)


IDS = list(range(100, 260))


FULL = (len(IDS) - 1) // 16 * 16


class Pod:
    """A worker and its publisher. An async context manager, which does not start the publisher."""

    def __init__(self, folder: Path) -> None:
        self.worker = LocalWorker.of(SETTINGS)
        self.publisher = Process("publisher", folder / "publisher.log")
        # The port stays reserved, so that a restarted publisher finds it free.
        self._ports = HeldPorts()
        self.address = f"{HOST}:{self._ports.take()}"
        self.epoch = ""

    async def __aenter__(self) -> Self:
        await self.worker.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.publisher.stop()
        finally:
            await self.worker.__aexit__()
            self._ports.close()

    async def publish(self, *options: str) -> None:
        line = await self.publisher.start(
            "publisher", "--pod=p", f"--model={MODEL}", f"--events={self.worker.events}",
            f"--replay={self.worker.replay}", f"--listen={self.address}", "--metrics-listen=", *options,
        )  # fmt: skip
        ready = json.loads(line)
        self.address, self.epoch = ready["address"], ready["epoch"]

    async def generate(self, ids: list[int]) -> int:
        body = {"model": MODEL, "prompt": ids, "max_tokens": 1}
        url = f"http://{self.worker.address}/v1/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
            answer = await response.json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
