"""A router that serves, a worker that it follows, and a client of both."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.running_router import running_router
from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.local.cluster import WorkerSettings
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.assemble.running import Running

SETTINGS = WorkerSettings(blocks=200, block_size=16, speed=1000.0, vocab_size=2048)
IDS = list(range(100, 200))


@dataclass
class Stand:
    """A router, one worker that it follows, and a client of both."""

    router: Running
    worker: LocalWorker
    stub: router_pb2_grpc.RouterStub
    channel: grpc.aio.Channel
    http: aiohttp.ClientSession

    async def generate(self, body: dict[str, object], path: str = "completions") -> int:
        """Have the worker answer; return the cached tokens that it reports."""
        url = f"http://{self.worker.address}/v1/{path}"
        async with self.http.post(url, json=body | {"max_tokens": 1}) as response:
            answer = await response.json()
            assert response.status == 200, answer
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def score(self, prompt: pb.Prompt, **fields: object) -> pb.ScoreResponse:
        request = pb.ScoreRequest(prompt=prompt, **fields)  # type: ignore[arg-type]
        return await self.stub.Score(request, timeout=10)

    async def settled(self, ready: Callable[[pb.ListPodsResponse], bool]) -> None:
        """Wait until `ready` is true of the router's pods; the test's own timeout bounds it."""
        while not ready(await self.stub.ListPods(pb.ListPodsRequest())):
            await asyncio.sleep(0.01)

    async def has_blocks(self, blocks: int) -> None:
        await self.settled(
            lambda pods: sum(tier.blocks for tier in pods.pods[0].ranks[0].tiers) >= blocks
        )


@asynccontextmanager
async def standing(
    folder: Path,
    model_folder: Path,
    engine: str = "vllm",
    *options: str,
    more: str = "",
    **router_options: Any,
) -> AsyncIterator[Stand]:
    options = (f"--tokenizer={model_folder}", "--adapter=tuned", *options)
    async with (
        LocalWorker.of(SETTINGS, *options) as worker,
        running_router(folder, tables(worker, model_folder, engine) + more, **router_options) as (
            router,
            channel,
        ),
        aiohttp.ClientSession() as http,
    ):
        stand = Stand(router, worker, router_pb2_grpc.RouterStub(channel), channel, http)
        await stand.settled(lambda pods: pods.pods[0].ranks[0].trust.level == pb.Trust.EXACT)
        yield stand


def tables(worker: LocalWorker, model_folder: Path, engine: str) -> str:
    """Return the configuration of a router that follows a worker."""
    return f"""
        [pick]
        prefill-base-seconds = 60  # no prefill counts as over while a test runs
        [limits]
        max-prompt-bytes = 4000
        max-prompt-tokens = 1000
        [[models]]
        name = "demo"
        aliases = ["demo-alias"]
        adapters = ["tuned"]
        tokenizer = "{model_folder}"
        [[models]]
        name = "ids-only"
        [[pods]]
        id = "pod-1"
        model = "demo"
        engine = "{engine}"
        address = "{worker.address}"
        events = "{worker.events}"
        replay = "{worker.replay}"
        """


def packed(ids: list[int] = IDS, **fields: object) -> pb.Prompt:
    return pb.Prompt(model="demo", token_ids_packed=pack_tokens(ids), **fields)  # type: ignore[arg-type]
