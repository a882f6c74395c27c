"""Score over gRPC, to a router in a process of its own that follows a simulated worker."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from random import Random

import aiohttp
import grpc

from bench.cluster import MODEL, Cluster, WorkerSettings
from bench.figure import Figure
from bench.fleet import BLOCK_SIZE, VOCAB_SIZE, prompt_of
from bench.timing import take_turns
from indexer.token import pack_tokens
from router.pb.warmpath.v1 import router_pb2 as pb
from router.pb.warmpath.v1 import router_pb2_grpc

TOKENS = 10_000
PODS = 2


def measure(*, quick: bool) -> list[Figure]:
    """Measure the forms of Score, one call at a time, the prompt warm on one pod."""
    return asyncio.run(_measure(calls=20 if quick else 300, rounds=3 if quick else 9))


async def _measure(calls: int, rounds: int) -> list[Figure]:
    ids = prompt_of(Random(1), TOKENS)
    settings = WorkerSettings(4096, BLOCK_SIZE, 1000.0, VOCAB_SIZE)
    with tempfile.TemporaryDirectory(prefix="warmpath-") as logs:
        async with Cluster(settings, PODS, Path(logs), router=True) as cluster:
            await _warm(cluster.workers[0].address, ids)
            return await asyncio.to_thread(_ask, cluster.router_address, ids, calls, rounds)


async def _warm(address: str, ids: list[int]) -> None:
    body = {"model": MODEL, "prompt": ids, "max_tokens": 1}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}/v1/completions", json=body) as response,
    ):
        response.raise_for_status()


def _ask(address: str, ids: list[int], calls: int, rounds: int) -> list[Figure]:
    packed = pb.ScoreRequest(prompt=pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(ids)))
    listed = pb.ScoreRequest(prompt=pb.Prompt(model=MODEL, token_ids=pb.TokenIds(ids=ids)))
    with grpc.insecure_channel(address) as channel:
        stub = router_pb2_grpc.RouterStub(channel)
        while not any(one.score for one in stub.Score(packed, timeout=10).scores):
            pass
        unary = f"Score over gRPC, {TOKENS:,} packed ids"
        ways = {
            unary: _unary(stub, packed, calls),
            f"Score over gRPC, {TOKENS:,} ids as repeated uint32": _unary(stub, listed, calls),
            f"ScoreStream, {TOKENS:,} packed ids": _stream(stub, packed, calls),
        }
        seconds = take_turns(ways, rounds=rounds)
    return [
        Figure(name, taken / calls * 1e6, "us", "Score with packed ids", taken / seconds[unary])
        for name, taken in seconds.items()
    ]


def _unary(
    stub: router_pb2_grpc.RouterStub, request: pb.ScoreRequest, calls: int
) -> Callable[[], None]:
    def ask() -> None:
        for _ in range(calls):
            stub.Score(request, timeout=10)

    return ask


def _stream(
    stub: router_pb2_grpc.RouterStub, request: pb.ScoreRequest, calls: int
) -> Callable[[], None]:
    def ask() -> None:
        asked: SimpleQueue[pb.ScoreRequest | None] = SimpleQueue()
        replies = stub.ScoreStream(iter(asked.get, None))
        for _ in range(calls):
            asked.put(request)
            next(replies)
        asked.put(None)
        assert not list(replies)

    return ask
