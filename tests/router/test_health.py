"""Readiness: one answer over HTTP and gRPC, and why."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.http2_client import Http2Client
from tests.router.running_router import running_router
from warmpath.router.prompt import texts

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
ASK = health_pb2.HealthCheckRequest(service="warmpath.v1.Router")


@dataclass
class Asked:
    """Both listeners of a router."""

    http: aiohttp.ClientSession
    address: str
    health: Any

    async def ready(self) -> tuple[int, dict[str, dict[str, Any]]]:
        async with self.http.get(f"http://{self.address}/readyz") as response:
            return response.status, (await response.json())["conditions"]

    async def status(self) -> int:
        return int((await self.health.Check(ASK, timeout=10)).status)

    async def until(self, status: int, code: int) -> dict[str, dict[str, Any]]:
        """Wait until both say so; the test's own timeout bounds it."""
        while True:
            found, said = await self.ready()
            if found == code and await self.status() == status:
                return said
            await asyncio.sleep(0.01)


@asynccontextmanager
async def asked(folder: Path, pods: str) -> AsyncIterator[Asked]:
    tables = f"""
        [probe]
        interval-seconds = 0.02
        [[models]]
        name = "demo"
        {pods}
        """
    async with (
        running_router(folder, tables) as (router, channel),
        aiohttp.ClientSession() as http,
    ):
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        yield Asked(http, router.http_address, stub)


def pod(address: str, more: str = "") -> str:
    return f"""
        [[pods]]
        id = "pod-1"
        model = "demo"
        address = "{address}"
        {more}
        """


async def test_a_router_without_pods_is_not_ready_and_says_so(tmp_path: Path) -> None:
    async with asked(tmp_path, "") as router:
        said = await router.until(NOT_SERVING, 503)
    assert said["pods"] == {"required": True, "holds": False, "reason": "no pod is known"}
    assert said["listening"]["holds"]


async def test_a_router_all_of_whose_pods_are_down_is_not_ready_and_says_why(
    tmp_path: Path, held_port: int
) -> None:
    address = f"127.0.0.1:{held_port}"
    async with asked(tmp_path, pod(address, 'events = "tcp://127.0.0.1:1"')) as router:
        assert await router.status() == NOT_SERVING, "from the first moment"
        said = await router.until(NOT_SERVING, 503)
        while "not connected" in said["pods"]["reason"]:
            said = await router.until(NOT_SERVING, 503)
    assert said["pods"]["reason"].startswith("none of 1 pods is healthy; pod-1: ")
    assert str(held_port) in said["pods"]["reason"]


async def test_a_required_tokenizer_that_comes_late_makes_the_router_ready(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "RETRY_SECONDS", 0.02)
    tables = """
        [[models]]
        name = "demo"
        tokenizer = "late"
        """
    async with (
        running_router(tmp_path, tables, server='ready = ["tokenizers"]') as (router, _),
        aiohttp.ClientSession() as http,
    ):
        asked = Asked(http, router.http_address, None)
        status, said = await asked.ready()
        assert status == 503
        assert said["tokenizers"]["reason"].startswith("0 of 1 tokenizers are loaded; demo: ")
        (tmp_path / "late").symlink_to(model_folder)
        while (await asked.ready())[0] != 200:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("service", ["", "warmpath.v1.Router"])
async def test_who_watches_hears_of_pods_that_come_and_go(tmp_path: Path, service: str) -> None:
    async with LocalWorker() as worker:
        ready = worker.ready
        more = f'events = "{ready["events"]}"\n        replay = "{ready["replay"]}"'
        async with asked(tmp_path, pod(ready["address"], more)) as router:
            watching = router.health.Watch(health_pb2.HealthCheckRequest(service=service))
            seen = [(await watching.read()).status]
            while seen[-1] != SERVING:
                seen.append((await watching.read()).status)
            assert (await router.until(SERVING, 200))["pods"]["reason"] == "1 of 1 pods are healthy"
            await worker.post("/drain")
            assert (await watching.read()).status == NOT_SERVING
            said = await router.until(NOT_SERVING, 503)
            assert "/health answers 503" in said["pods"]["reason"]
            watching.cancel()


async def test_a_watcher_that_reads_nothing_keeps_the_answer_from_nobody(tmp_path: Path) -> None:
    question = health_pb2.HealthCheckRequest().SerializeToString()
    async with running_router(tmp_path, '[[models]]\nname = "demo"') as (router, channel):
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        async with Http2Client(router.address, service="grpc.health.v1.Health") as mute:
            for _ in range(20):
                mute.call("Watch", question)
            # Their first status waits for a window that never opens.
            watching = stub.Watch(ASK)
            assert (await watching.read()).status == NOT_SERVING
            for _ in range(5):
                assert (await stub.Check(ASK, timeout=10)).status == NOT_SERVING
            watching.cancel()


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_a_question_longer_than_any_name_is_refused(tmp_path: Path, method: str) -> None:
    question = health_pb2.HealthCheckRequest(service="x" * (1 << 20))
    async with running_router(tmp_path, '[[models]]\nname = "demo"') as (_, channel):
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        call = getattr(stub, method)(question, timeout=10)
        with pytest.raises(grpc.aio.AioRpcError, match="more than 4096") as refused:
            await (call if method == "Check" else anext(aiter(call)))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_service_is_said_to_be_unknown(tmp_path: Path) -> None:
    question = health_pb2.HealthCheckRequest(service="nothing")
    async with running_router(tmp_path, '[[models]]\nname = "demo"') as (_, channel):
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(question, timeout=10)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watching = stub.Watch(question)
        told = await watching.read()
        assert told.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watching.cancel()
