"""Several routers behind one port: one may die, none is left at the end, and they can share bookings."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.router.pick_stand import QUIET, pod
from tests.router.running_router import metrics_page, serving, started
from tests.servers.redis_server import RedisServer
from tests.waiting import until
from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

pytestmark = pytest.mark.deep

COUNT = 2
PROMPT = pb.Prompt(model="demo", token_ids=pb.TokenIds(ids=range(100)))


class Served:
    """`warmpath serve` with several processes; each call comes over a connection of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, metrics: int) -> None:
        self.process = process
        self.port = port
        self.metrics = metrics

    def children(self) -> set[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return set(map(int, path.read_text().split()))

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Callable[..., Any]]:
        """Connect; the function that is returned calls a method with its request's fields."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"127.0.0.1:{self.port}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub = router_pb2_grpc.RouterStub(channel)

            def call(method: str, **fields: Any) -> Any:
                request = getattr(pb, f"{method}Request")(**fields)
                return getattr(stub, method)(request, timeout=30, wait_for_ready=True)

            yield call

    async def call(self, method: str, **fields: Any) -> Any:
        async with self.connected() as call:
            return await call(method, **fields)

    async def score(self) -> int:
        return int((await self.call("Score", prompt=PROMPT)).prompt_tokens)

    async def pages(self) -> list[str]:
        return [await metrics_page(f"127.0.0.1:{self.metrics + one}") for one in range(COUNT)]

    async def metric(self, name: str) -> list[float]:
        """Return what each process says."""
        pages = await self.pages()
        found = [re.findall(rf"^{name} (\S+)$", page, re.MULTILINE) for page in pages]
        return [float(value) for [value] in found]

    async def until_in_flight(self, number: int) -> None:
        """Wait until whoever is asked reports this number of requests in flight."""
        found = {-1}
        while found != {number}:
            told = [await self.call("Explain", prompt=PROMPT) for _ in range(10)]
            found = {sum(one.details.in_flight for one in answer.candidates) for answer in told}


def config(port: int, metrics: int, more: str = "") -> str:
    return (
        f'[server]\ndrain-delay-seconds = 0\nlisten = "127.0.0.1:{port}"\nmetrics-listen = "127.0.0.1:{metrics}"\n'
        f'processes = {COUNT}\n{QUIET}{more}[[models]]\nname = "demo"\n{pod("a")}{pod("b")}'
    )


@asynccontextmanager
async def several(folder: Path, ports: HeldPorts, more: str = "") -> AsyncIterator[Served]:
    port, metrics = ports.take(), ports.take(1)
    async with serving(folder / "router.toml", config(port, metrics, more)) as router:
        assert "2 processes" in router.line
        yield Served(router.process, port, metrics)


@pytest.fixture
async def served(tmp_path: Path, held_ports: HeldPorts) -> AsyncIterator[Served]:
    async with several(tmp_path, held_ports) as served:
        yield served


def is_gone(pid: int) -> bool:
    try:
        # A child of nobody is init's to bury, which may take its time.
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


async def test_connections_are_dealt_out_and_every_process_has_metrics(served: Served) -> None:
    while not all('method="Score"' in page for page in await served.pages()):
        assert await served.score() == 100


async def test_one_that_dies_is_started_again_and_new_calls_are_answered(served: Served) -> None:
    before = served.children()
    assert len(before) == COUNT
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    await until(lambda: is_gone(victim))
    for _ in range(8):
        assert await served.score() == 100
    await until(lambda: len(served.children() - before) == 1)


async def test_all_end_when_they_are_asked_to(served: Served) -> None:
    children = served.children()
    served.process.terminate()
    assert await served.process.wait() == 0
    assert all(map(is_gone, children))


async def test_none_is_left_where_the_first_is_killed(served: Served) -> None:
    children = served.children()
    served.process.kill()
    await served.process.wait()
    await until(lambda: all(map(is_gone, children)))


@pytest.mark.parametrize("key", ["listen", "metrics-listen"])
async def test_a_port_that_is_taken_ends_all_and_is_named(
    served: Served, tmp_path: Path, held_ports: HeldPorts, key: str
) -> None:
    port, metrics = held_ports.take(), held_ports.take(1)
    if key == "listen":
        port = taken = served.port
    else:
        metrics = taken = served.metrics
    other = await started(tmp_path / "other.toml", config(port, metrics))
    _, said = await other.communicate()
    assert other.returncode == 1
    assert f"server.{key}: cannot bind 127.0.0.1:{taken}" in said.decode()


async def test_each_keeps_the_bookings_of_its_connections(served: Served) -> None:
    for _ in range(4):
        async with served.connected() as call:
            answer = await call("Pick", prompt=PROMPT)
            assert len(answer.candidates) == 2
            for is_known in (True, False):
                told = await call("Report", booking_id=answer.booking_id, event="FINISHED")
                assert told.known is is_known


async def test_those_that_share_bookings_count_the_others_and_take_their_reports(
    tmp_path: Path, redis_server: RedisServer, prefix: str, held_ports: HeldPorts
) -> None:
    index = f'[shared-index]\nurl = "{redis_server.url}"\nprefix = "{prefix}"\n'
    async with several(tmp_path, held_ports, f"{index}share-bookings = true\n") as served:
        names: list[str] = []
        while len(names) < 8 or not all(await served.metric("warmpath_bookings")):
            names.append((await served.call("Pick", prompt=PROMPT)).booking_id)
        await served.until_in_flight(len(names))
        assert await served.metric("warmpath_shared_bookings_routers") == [1.0, 1.0]
        for name in names:
            assert (await served.call("Report", booking_id=name, event="FINISHED")).known
        await served.until_in_flight(0)
        assert await served.metric("warmpath_bookings") == [0.0, 0.0]
        reports = "warmpath_shared_bookings_reports"
        handed_on = await served.metric(f"{reports}_handed_on_total")
        assert handed_on == (await served.metric(f"{reports}_received_total"))[::-1]
        served.process.terminate()
        assert await served.process.wait() == 0
