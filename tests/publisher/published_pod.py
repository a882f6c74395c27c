"""A simulated worker in the test's own event loop, with a publisher beside it as a process."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import grpc.aio

from tests.lab.simworker.local_worker import LocalWorker
from warmpath.cli.child import Process
from warmpath.indexer.keys.key import fingerprint, pack_tokens
from warmpath.lab.local.cluster import MODEL, WorkerSettings
from warmpath.lab.local.ports import HOST, HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as watch_pb
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2_grpc
from warmpath.router.assemble.running import running
from warmpath.router.config.read import parse

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
            "warmpath.publisher.main", "--pod=p", f"--model={MODEL}", f"--events={self.worker.events}",
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


def router_config(pod: Pod, more: str = "") -> str:
    return (
        '[server]\ndrain-delay-seconds = 0\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n'
        f'[[models]]\nname = "{MODEL}"\n'
        f'[[pods]]\nid = "p"\nmodel = "{MODEL}"\naddress = "{pod.worker.address}"\n'
        f'watch = "{pod.address}"\n' + more
    )


class Asker:
    """A client of a router."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = router_pb2_grpc.RouterStub(channel)

    async def scores(self) -> pb.ScoreResponse:
        prompt = pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(IDS))
        return await self.stub.Score(pb.ScoreRequest(prompt=prompt), timeout=5)

    async def score(self) -> pb.PodScore:
        return (await self.scores()).scores[0]

    async def until(self, ready: Callable[[pb.PodScore], bool]) -> pb.PodScore:
        while not ready(score := await self.score()):
            await asyncio.sleep(0.01)
        return score


@asynccontextmanager
async def asking(config: str, folder: Path) -> AsyncIterator[Asker]:
    async with (
        running(parse(config, "test"), folder) as router,
        grpc.aio.insecure_channel(router.address) as channel,
    ):
        yield Asker(channel)


@asynccontextmanager
async def watching(pod: Pod) -> AsyncIterator[Callable[..., Any]]:
    """Yield what begins to watch the publisher, from a position if one is given."""
    async with grpc.aio.insecure_channel(pod.address) as channel:
        stub: Any = cache_watch_pb2_grpc.CacheWatchStub(channel)
        keyspace = fingerprint(MODEL, "")
        yield lambda **more: stub.Watch(watch_pb.WatchRequest(keyspace=keyspace, **more))
