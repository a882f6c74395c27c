"""A router that follows pods through the shared index, its client, and publishers that write there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.running_router import metrics_page, running_router
from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.local.cluster import MODEL, Worker, WorkerSettings
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.publisher.assemble import Settings
from warmpath.router.assemble.running import Running
from warmpath.router.tracing.steps import NO_TRACER, Tracer

WORKER = WorkerSettings(blocks=400, block_size=16, speed=1000.0, vocab_size=32000)
IDS = list(range(100, 260))
OTHER = list(range(5000, 5100))
LEASE = 5.0
"""Seconds, long enough for a publisher on a busy machine; an audit comes each tenth of it."""


@dataclass
class Router:
    """A router and a client of it."""

    running: Running
    stub: router_pb2_grpc.RouterStub

    async def score(self, ids: list[int] = IDS) -> dict[str, int]:
        """Return the tokens of a prompt that each pod holds according to the router."""
        prompt = pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(ids))
        answer = await self.stub.Score(pb.ScoreRequest(prompt=prompt), timeout=30)
        return {one.pod: one.matched_tokens for one in answer.scores}

    async def holds(self, tokens: int, ids: list[int] = IDS) -> None:
        """Wait until the pod `w` holds so many tokens of a prompt."""
        while await self.score(ids) != {"w": tokens}:
            await asyncio.sleep(0.02)

    async def until_trust(self, level: int) -> pb.Trust:
        while (trust := await self.trust()).level != level:
            await asyncio.sleep(0.02)
        return trust

    async def pod(self, pod: str = "w") -> pb.Pod:
        pods = await self.stub.ListPods(pb.ListPodsRequest(), timeout=30)
        [found] = [one for one in pods.pods if one.id == pod]
        return found

    async def trust(self, pod: str = "w") -> pb.Trust:
        return (await self.pod(pod)).ranks[0].trust

    async def is_believed(self) -> bool:
        return (await self.trust()).level == pb.Trust.EXACT


@asynccontextmanager
async def router(
    folder: Path,
    url: str,
    prefix: str,
    pod: str,
    more: str = "",
    probe_seconds: float = 0.0,
    tracer: Tracer = NO_TRACER,
) -> AsyncIterator[Router]:
    tables = f"""
        [probe]
        interval-seconds = {probe_seconds}
        [shared-index]
        url = "{url}"
        prefix = "{prefix}"
        {more}
        [[models]]
        name = "{MODEL}"
        {pod}
        """
    async with running_router(folder, tables, tracer=tracer) as (one, channel):
        yield Router(one, router_pb2_grpc.RouterStub(channel))


async def generate(worker: LocalWorker | Worker, ids: list[int]) -> int:
    """Have a worker answer; return the cached tokens that it reports."""
    body = {"model": MODEL, "prompt": ids, "max_tokens": 1}
    url = f"http://{worker.address}/v1/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def seen(worker: LocalWorker, name: str = "w") -> str:
    """Return the table of a pod that is followed only through the shared index."""
    return f'[[pods]]\nid = "{name}"\nmodel = "{MODEL}"\naddress = "{worker.address}"\n'


def publisher(worker: LocalWorker, url: str, prefix: str, **changes: object) -> Settings:
    fields = {
        "pod": "w", "model": MODEL, "engine": "vllm", "events": worker.events,
        "replay": worker.replay, "topic": "", "ranks": 1, "first_rank": 0, "blocks": 0, "block_size": 16,
        "hash_seed": "", "listen": "127.0.0.1:0", "metrics_listen": "", "journal_bytes": 1 << 20,
        "max_watchers": 2, "redis": url, "redis_prefix": prefix, "redis_lease_seconds": LEASE,
    }  # fmt: skip
    return Settings(**(fields | changes))  # type: ignore[arg-type]


async def page(one: Router) -> str:
    return await metrics_page(one.running.http_address)
