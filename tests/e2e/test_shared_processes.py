"""The processes of one router share bookings: a report may come on any connection."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from tests.servers.redis_server import RedisServer
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

pytestmark = pytest.mark.deep

PROMPT = pb.Prompt(model="m", token_ids=pb.TokenIds(ids=range(100)))


class Served:
    """`warmpath serve` with two processes."""

    def __init__(self, port: int, metrics: list[int]) -> None:
        self.address = f"127.0.0.1:{port}"
        self._metrics = [f"http://127.0.0.1:{port}/metrics" for port in metrics]

    async def pick(self) -> str:
        """Pick over a connection of its own, as each call here; return the booking's id."""
        return str((await self._call("Pick", pb.PickRequest(prompt=PROMPT))).booking_id)

    async def report(self, name: str) -> bool:
        request = pb.ReportRequest(booking_id=name, event=pb.ReportRequest.FINISHED)
        return bool((await self._call("Report", request)).known)

    async def in_flight(self) -> int:
        told = await self._call("Explain", pb.ExplainRequest(prompt=PROMPT))
        return sum(one.details.in_flight for one in told.candidates)

    async def metric(self, name: str) -> list[float]:
        """Return what each process says."""
        found = []
        async with aiohttp.ClientSession() as http:
            for url in self._metrics:
                async with http.get(url) as response:
                    line = re.search(rf"^{name} (\S+)$", await response.text(), re.MULTILINE)
                    assert line
                    found.append(float(line[1]))
        return found

    async def all_say(self, in_flight: int) -> bool:
        """Whether every router that is asked reports this number of requests in flight."""
        return all([await self.in_flight() == in_flight for _ in range(10)])

    async def _call(self, method: str, request: object):  # noqa: ANN202  any of the answers
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            stub = router_pb2_grpc.RouterStub(channel)
            return await getattr(stub, method)(request, timeout=30, wait_for_ready=True)


@pytest.fixture
async def served(
    tmp_path: Path, redis_server: RedisServer, prefix: str, held_ports: HeldPorts
) -> AsyncIterator[Served]:
    port, metrics = held_ports.take(), held_ports.take(1)
    config = tmp_path / "router.toml"
    config.write_text(
        f'[server]\ndrain-delay-seconds = 0\nlisten = "127.0.0.1:{port}"\nmetrics-listen = "127.0.0.1:{metrics}"\n'
        "processes = 2\n[probe]\ninterval-seconds = 0\n"
        f'[shared-index]\nurl = "{redis_server.url}"\nprefix = "{prefix}"\nshare-bookings = true\n'
        '[[models]]\nname = "m"\n'
        '[[pods]]\nid = "a"\nmodel = "m"\naddress = "a:80"\n'
        '[[pods]]\nid = "b"\nmodel = "m"\naddress = "b:80"\n'
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warmpath.cli", "serve", "--config", str(config),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    assert b"2 processes" in await process.stdout.readline()
    yield Served(port, [metrics, metrics + 1])
    if process.returncode is None:
        process.terminate()
    assert await process.wait() == 0


async def test_each_process_counts_the_others_bookings_and_takes_their_reports(
    served: Served,
) -> None:
    names = []
    while not names or not all(await served.metric("warmpath_bookings")):
        names.append(await served.pick())
    names += [await served.pick() for _ in range(8)]
    while not await served.all_say(len(names)):
        await asyncio.sleep(0.01)
    assert await served.metric("warmpath_shared_bookings_routers") == [1.0, 1.0]
    assert all([await served.report(name) for name in names])
    while not await served.all_say(0):
        await asyncio.sleep(0.01)
    assert await served.metric("warmpath_bookings") == [0.0, 0.0]
    handed_on = await served.metric("warmpath_shared_bookings_reports_handed_on_total")
    assert (
        handed_on == (await served.metric("warmpath_shared_bookings_reports_received_total"))[::-1]
    )
