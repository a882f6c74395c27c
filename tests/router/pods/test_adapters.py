"""Adapters that engines load and unload while a router runs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from tests.router.running_router import running_router
from tests.servers.http import listening
from warmpath.indexer.engines import vllm
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.index.memory import MemoryIndex
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.pods.probe import LOOKS, Prober
from warmpath.router.pods.table import Pod, PodTable, Status

IDS = list(range(200))


class Engine:
    """Lists a base model `m` and its adapters."""

    def __init__(self) -> None:
        self.adapters = ["tuned"]
        self.asked: list[str] = []
        self.address = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path != "/v1/models":
            return web.Response()
        cards: list[dict[str, Any]] = [{"id": "m", "parent": None}]
        cards += [{"id": name, "parent": "m"} for name in self.adapters]
        return web.json_response({"data": cards})

    def looks_before(self, times: int) -> int:
        """Return how many looks there were until the models were asked for so often."""
        health = 0
        for path in self.asked:
            health += path == "/health"
            times -= path == "/v1/models"
            if not times:
                return health
        raise AssertionError("the models were not asked for so often")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Engine"]:
        async with listening(self.answer) as self.address:
            yield self


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_failed_request_for_an_adapter_has_all_pods_asked_for_their_models_again(
    tmp_path: Path,
) -> None:
    async with Engine().serving() as first, Engine().serving() as second:
        second.adapters = []
        tables = '[[models]]\nname = "m"\nadapters = ["tuned"]\n[probe]\ninterval-seconds = 0.2\n'
        tables += "".join(
            f'[[pods]]\nid = "{name}"\nmodel = "m"\naddress = "{one.address}"\n'
            for name, one in (("first", first), ("second", second))
        )
        async with running_router(tmp_path, tables) as (_, channel):
            stub = router_pb2_grpc.RouterStub(channel)

            async def pick(model: str = "tuned") -> pb.PickResponse:
                prompt = pb.Prompt(model=model, token_ids_packed=pack_tokens(IDS))
                return await stub.Pick(pb.PickRequest(prompt=prompt), timeout=30)

            await until(lambda: "/v1/models" in first.asked and "/v1/models" in second.asked)
            await until(lambda: len(first.asked) > 4 and len(second.asked) > 4)
            picked = await pick()
            assert picked.candidates[0].pod == "first"
            first.adapters, second.adapters = [], ["tuned"]
            first.asked.clear()
            second.asked.clear()
            failed = pb.ReportRequest(booking_id=picked.booking_id, event=pb.ReportRequest.FAILED)
            await stub.Report(failed, timeout=30)
            for engine in (first, second):
                await until(lambda engine=engine: "/v1/models" in engine.asked)
                assert engine.looks_before(1) < LOOKS / 2
            await until(lambda: len(second.asked) > second.asked.index("/v1/models") + 1)
            while (await pick()).candidates[0].pod != "second":
                await asyncio.sleep(0.01)


async def test_an_adapter_with_the_models_own_name_gets_the_requests_of_that_name(
    tmp_path: Path,
) -> None:
    async with Engine().serving() as engine:
        engine.adapters = ["m"]
        tables = '[[models]]\nname = "m"\naliases = ["alias"]\n[probe]\ninterval-seconds = 0.2\n'
        tables += f'[[pods]]\nid = "p"\nmodel = "m"\naddress = "{engine.address}"\n'
        async with running_router(tmp_path, tables) as (_, channel):
            stub = router_pb2_grpc.RouterStub(channel)

            async def held(**named: str) -> int:
                prompt = pb.Prompt(token_ids_packed=pack_tokens(IDS), **named)
                told = await stub.Explain(pb.ExplainRequest(prompt=prompt), timeout=30)
                return told.candidates[0].matched_tokens

            await until(lambda: engine.asked.count("/health") > 1)

            async def send() -> str:
                prompt = pb.Prompt(model="m", token_ids_packed=pack_tokens(IDS))
                picked = await stub.Pick(pb.PickRequest(prompt=prompt), timeout=30)
                name, event = picked.booking_id, pb.ReportRequest.FIRST_TOKEN
                await stub.Report(pb.ReportRequest(booking_id=name, event=event), timeout=30)
                return name

            last = await send()
            assert await held(model="m") == await held(model="m", lora="m") > 0
            assert await held(model="alias") == 0, "it reaches the base model"
            assert await held(model="m", lora="tuned") == 0
            engine.adapters = []
            failed = pb.ReportRequest(booking_id=last, event=pb.ReportRequest.FAILED)
            await stub.Report(failed, timeout=30)
            while not await held(model="alias"):
                await send()


def test_engines_of_other_kinds_find_adapters_by_other_names() -> None:
    adapters = Status(adapters=frozenset({"m", "tuned"}))
    named = Pod("a", "a:1", "m", (), status=adapters)
    beside = Pod("b", "b:1", "m", (), status=adapters, engine="sglang")
    assert PodTable([beside]).found_by_name() == set()
    assert PodTable([beside, named]).found_by_name() == {"m", "tuned"}


async def test_pods_are_asked_for_their_models_at_most_once_an_interval_however_many_fail() -> None:
    async with Engine().serving() as engine:
        now = 0.0
        pod = Pod("p", engine.address, "m", (), has_events=False)
        prober = Prober(pod, interval=3600, timeout=30, clock=lambda: now)
        running = asyncio.ensure_future(prober.run())
        await until(lambda: pod.status.healthy)
        prober.doubt_models()
        await until(lambda: not running.done())
        assert engine.asked.count("/v1/models") == 1, "they were asked for just now"
        running.cancel()
        now = 3600.0
        running = asyncio.ensure_future(prober.run())
        await until(lambda: engine.asked.count("/v1/models") == 2)
        now = 7200.0
        for _ in range(100):
            prober.doubt_models()
        await until(lambda: engine.asked.count("/v1/models") == 3)
        assert engine.looks_before(3) == 3
        running.cancel()


@pytest.fixture
def rank() -> RankIngest:
    ingest = Ingest(MemoryIndex(), hash_seed="", pending_bytes=1, stale_after=1, clock=lambda: 0.0)
    return ingest.add(RankSource("p", 0, "m", vllm.decode, has_replay=False))


async def test_an_adapter_that_events_name_is_looked_for_at_the_next_look(rank: RankIngest) -> None:
    async with Engine().serving() as engine, aiohttp.ClientSession() as session:
        engine.adapters = []
        pod = Pod("p", engine.address, "m", (rank,))
        prober = Prober(pod, interval=1, timeout=30)
        await prober.look(session)
        engine.adapters = ["m"]
        await prober.look(session)
        assert not pod.status.adapters
        rank.connected()
        rank.live("", 0, stored("m"))
        await prober.look(session)
        assert pod.status.adapters == {"m"}
        rank.live("", 1, stored("m"))
        await prober.look(session)
        assert engine.asked.count("/v1/models") == 2


def stored(adapter: str) -> bytes:
    fields = {"block_hashes": [1], "parent_block_hash": None, "token_ids": IDS[:16]}
    fields |= {"block_size": 16, "lora_id": 1, "medium": "GPU", "lora_name": adapter}
    return msgspec.msgpack.encode([0.0, [{"type": "BlockStored", **fields}], 0])
