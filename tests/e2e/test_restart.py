"""A pod dies in the middle of traffic and comes back."""

import asyncio
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from warmpath.indexer.keys.key import pack_tokens
from warmpath.lab.local.cluster import MODEL, Cluster, WorkerSettings
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

SETTINGS = WorkerSettings(blocks=500, block_size=16, speed=500.0, vocab_size=32000)
IDS = list(range(100, 500))
FULL = (len(IDS) - 1) // 16 * 16


@pytest.mark.deep
async def test_no_call_fails_and_the_pods_score_falls_to_zero_and_recovers(tmp_path: Path) -> None:
    async with (
        Cluster(SETTINGS, 2, tmp_path, router=True) as cluster,
        aiohttp.ClientSession() as http,
        grpc.aio.insecure_channel(cluster.router_address) as channel,
    ):
        stub = router_pb2_grpc.RouterStub(channel)
        victim, other = cluster.workers
        prompt = pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(IDS))
        calls = 0
        over = False

        async def score(pod: str) -> pb.PodScore:
            """Score; any failed call ends the test."""
            nonlocal calls
            response = await stub.Score(pb.ScoreRequest(prompt=prompt, pods=[pod]), timeout=5)
            calls += 1
            return response.scores[0]

        async def traffic() -> None:
            while not over:
                await stub.Pick(pb.PickRequest(prompt=prompt), timeout=5)
                await score(other.id)

        async def warm(address: str) -> None:
            body = {"model": MODEL, "prompt": IDS, "max_tokens": 1}
            async with http.post(f"http://{address}/v1/completions", json=body) as response:
                response.raise_for_status()

        async def told() -> int:
            """Return what the victim's events say that it holds: picks may be on their way besides."""
            found = await score(victim.id)
            return found.matched_tokens - found.believed_tokens

        async def until_told(tokens: int) -> None:
            while await told() != tokens:
                await asyncio.sleep(0.01)

        await warm(victim.address)
        await warm(other.address)
        await until_told(FULL)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic())
            victim.process.kill()
            while (await score(victim.id)).score:
                await asyncio.sleep(0.01)
            picked = await stub.Pick(pb.PickRequest(prompt=prompt))
            assert picked.candidates[0].pod == other.id
            await cluster.restart(victim)
            while (await score(victim.id)).trust.level != pb.Trust.EXACT:
                await asyncio.sleep(0.01)
            assert await told() == 0, "its cache is empty"
            await warm(victim.address)
            await until_told(FULL)
            # Events may come before the next probe does.
            while not (await score(victim.id)).ready:
                await asyncio.sleep(0.01)
            over = True
        assert calls > 10
        assert (await score(other.id)).matched_tokens == FULL
