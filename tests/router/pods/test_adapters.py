"""Adapters that engines load and unload while a router runs."""

import asyncio
from pathlib import Path

import msgspec

from tests.indexer.sides import stored
from tests.router.pods.engine import Engine
from tests.router.running_router import running_router
from tests.waiting import until
from warmpath.indexer.keys.key import pack_tokens
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc
from warmpath.router.pods.probe import LOOKS

IDS = list(range(200))


def looks_before(engine: Engine, times: int) -> int:
    """Return how many looks there were until the models were asked for so often."""
    health = 0
    for path in engine.asked:
        health += path == "/health"
        times -= path == "/v1/models"
        if not times:
            return health
    raise AssertionError("the models were not asked for so often")


async def test_a_failed_request_for_an_adapter_has_all_pods_asked_for_their_models_again(
    tmp_path: Path,
) -> None:
    async with Engine().serving() as first, Engine().serving() as second:
        first.list_adapters("tuned")
        second.list_adapters()
        tables = '[[models]]\nname = "m"\nadapters = ["tuned"]\n[probe]\ninterval-seconds = 0.2\n'
        tables += "".join(
            f'[[pods]]\nid = "{name}"\nmodel = "m"\naddress = "{one.pod.address}"\n'
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
            first.list_adapters()
            second.list_adapters("tuned")
            first.asked.clear()
            second.asked.clear()
            failed = pb.ReportRequest(booking_id=picked.booking_id, event=pb.ReportRequest.FAILED)
            await stub.Report(failed, timeout=30)
            for engine in (first, second):
                await until(lambda engine=engine: "/v1/models" in engine.asked)
                assert looks_before(engine, 1) < LOOKS / 2
            await until(lambda: len(second.asked) > second.asked.index("/v1/models") + 1)
            while (await pick()).candidates[0].pod != "second":
                await asyncio.sleep(0.01)


async def test_an_adapter_with_the_models_own_name_gets_the_requests_of_that_name(
    tmp_path: Path, engine: Engine
) -> None:
    engine.list_adapters("m")
    tables = '[[models]]\nname = "m"\naliases = ["alias"]\n[probe]\ninterval-seconds = 0.2\n'
    tables += f'[[pods]]\nid = "p"\nmodel = "m"\naddress = "{engine.pod.address}"\n'
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
        engine.list_adapters()
        failed = pb.ReportRequest(booking_id=last, event=pb.ReportRequest.FAILED)
        await stub.Report(failed, timeout=30)
        while not await held(model="alias"):
            await send()


async def test_pods_are_asked_for_their_models_at_most_once_an_interval_however_many_fail(
    engine: Engine,
) -> None:
    engine.prober.interval = lambda: 3600
    running = asyncio.ensure_future(engine.prober.run())
    await until(lambda: engine.status.healthy)
    engine.prober.doubt_models()
    await until(lambda: not running.done())
    assert engine.asked.count("/v1/models") == 1, "they were asked for just now"
    running.cancel()
    engine.now += 3600.0
    running = asyncio.ensure_future(engine.prober.run())
    await until(lambda: engine.asked.count("/v1/models") == 2)
    engine.now += 3600.0
    for _ in range(100):
        engine.prober.doubt_models()
    await until(lambda: engine.asked.count("/v1/models") == 3)
    assert looks_before(engine, 3) == 3
    running.cancel()


async def test_an_adapter_that_events_name_is_looked_for_at_the_next_look(engine: Engine) -> None:
    engine.list_adapters()
    await engine.look()
    engine.list_adapters("m")
    await engine.look()
    assert not engine.status.adapters
    for sequence in range(2):
        named = stored([1], IDS[:16], None, 16, lora_id=1, lora_name="m")
        engine.rank.live("", sequence, msgspec.msgpack.encode([0.0, [named], 0]))
        await engine.look()
        assert engine.status.adapters == {"m"}
    assert engine.asked.count("/v1/models") == 2
