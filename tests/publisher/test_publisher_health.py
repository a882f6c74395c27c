"""A publisher's health: one state, whether it follows every rank of its engine now."""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest
import zmq
import zmq.asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from warmpath.lab.local.ports import HeldPorts
from warmpath.publisher.assemble import Settings, publishing

Status = health_pb2.HealthCheckResponse


def settings(port: int) -> Settings:
    return Settings(
        pod="p", model="m", engine="vllm", events=f"tcp://127.0.0.1:{port}", replay="", topic="",
        first_rank=0,
        ranks=2, blocks=0, block_size=16, hash_seed="", listen="127.0.0.1:0", metrics_listen="",
        journal_bytes=1 << 20, max_watchers=4,
    )  # fmt: skip


@pytest.fixture
async def health(two_ports: int) -> AsyncIterator[tuple[int, health_pb2_grpc.HealthStub]]:
    async with (
        publishing(settings(two_ports)) as publisher,
        grpc.aio.insecure_channel(publisher.address) as channel,
    ):
        yield two_ports, health_pb2_grpc.HealthStub(channel)


@pytest.fixture
def two_ports(held_ports: HeldPorts) -> int:
    """Return the first of two ports, those of the ranks."""
    return held_ports.take(1)


async def asked(stub: health_pb2_grpc.HealthStub) -> int:
    return (await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)).status


async def until(stub: health_pb2_grpc.HealthStub, status: int) -> None:
    while await asked(stub) != status:
        await asyncio.sleep(0.01)


async def test_a_publisher_serves_while_it_follows_every_rank_of_its_engine(
    health: tuple[int, health_pb2_grpc.HealthStub],
) -> None:
    port, stub = health
    assert await asked(stub) == Status.NOT_SERVING, "there is no engine yet"
    told = aiter(stub.Watch(health_pb2.HealthCheckRequest()))
    assert (await anext(told)).status == Status.NOT_SERVING
    with zmq.asyncio.Context() as context:
        ranks = [context.socket(zmq.PUB) for _ in range(2)]
        ranks[0].bind(f"tcp://127.0.0.1:{port}")
        ranks[1].bind(f"tcp://127.0.0.1:{port + 1}")
        await until(stub, Status.SERVING)
        assert (await anext(told)).status == Status.SERVING
        ranks[1].close(linger=0)
        await until(stub, Status.NOT_SERVING)
        assert (await anext(told)).status == Status.NOT_SERVING
        ranks[0].close(linger=0)


async def test_a_request_longer_than_any_a_router_makes_is_not_read(
    health: tuple[int, health_pb2_grpc.HealthStub],
) -> None:
    _, stub = health
    question = health_pb2.HealthCheckRequest(service="x" * (1 << 20))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Check(question, timeout=10)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.aio.AioRpcError, match="no such service"):
        await stub.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=10)
