"""Engines that are followed directly, on other machines and with ranks that do not begin with 0."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.indexer.sides import stored
from tests.router.running_router import running_router
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

QUIET = "[probe]\ninterval-seconds = 0\n"


def pod(events: str, more: str = "") -> str:
    return (
        f'[[models]]\nname = "m"\n[[pods]]\nid = "p"\nmodel = "m"\naddress = "127.0.0.1:1"\n'
        f'events = "{events}"\n{more}'
    )


@pytest.mark.parametrize(
    ("tables", "is_said"), [("", True), ("[events]\ntrusted-network = true\n", False)]
)
async def test_events_that_cross_a_network_are_said_in_the_log_and_by_the_doctor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tables: str, *, is_said: bool
) -> None:
    # An address for documentation (RFC 5737): nobody answers there.
    tables += QUIET + pod("tcp://192.0.2.1:5557")
    async with running_router(tmp_path, tables) as (_, channel):
        answer = await router_pb2_grpc.RouterStub(channel).Diagnose(pb.DiagnoseRequest())
    assert (
        "pod p: its events come from tcp://192.0.2.1:5557 in plain text" in caplog.text
    ) == is_said
    assert ("plain-text" in {one.kind for one in answer.findings}) == is_said


async def test_the_first_ranks_port_counts_from_rank_0s(tmp_path: Path) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as engine:
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        tables = QUIET + pod(f"tcp://127.0.0.1:{port - 3}", "first-rank = 3\n")
        async with running_router(tmp_path, tables) as (_, channel):
            publishing = asyncio.create_task(_publish(engine))
            stub = router_pb2_grpc.RouterStub(channel)
            while not (await _blocks(stub)):
                await asyncio.sleep(0.01)
            publishing.cancel()


async def test_more_ranks_are_followed_than_zeromq_has_sockets_for_by_default(
    tmp_path: Path,
) -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as engine:
        port = engine.bind_to_random_port("tcp://*")
        ranks = context.get(zmq.MAX_SOCKETS) // 3 + 10
        pods = (
            f'[[pods]]\nid = "p{number}"\nmodel = "m"\naddress = "127.0.0.1:1"\n'
            f'events = "tcp://127.0.{number // 200}.{number % 200 + 1}:{port}"\n'
            for number in range(ranks)
        )
        tables = "".join((QUIET, '[[models]]\nname = "m"\n', *pods))
        async with running_router(tmp_path, tables) as (_, channel):
            stub = router_pb2_grpc.RouterStub(channel)
            while not all(one.ready for one in (await stub.ListPods(pb.ListPodsRequest())).pods):
                await asyncio.sleep(0.1)


async def _publish(engine: zmq.asyncio.Socket) -> None:
    """Publish repeatedly that a block is stored: a late subscriber gets the next message."""
    batch = msgspec.msgpack.encode([1.0, [stored([7], range(16), None, 16)], 3])
    for sequence in range(1 << 30):
        await engine.send_multipart([b"", sequence.to_bytes(8, "big"), batch])
        await asyncio.sleep(0.01)


async def _blocks(stub: router_pb2_grpc.RouterStub) -> int:
    [found] = (await stub.ListPods(pb.ListPodsRequest())).pods
    [rank] = found.ranks
    assert rank.rank == 0
    return sum(tier.blocks for tier in rank.tiers)
