"""Several routers behind one port: one may die, and none is left when they are to end."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from warmpath.lab.local.ports import HeldPorts
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.v1 import router_pb2_grpc

pytestmark = pytest.mark.deep

COUNT = 2
REQUEST = pb.ScoreRequest(prompt=pb.Prompt(model="m", token_ids=pb.TokenIds(ids=[1, 2, 3])))


class Served:
    """`warmpath serve` with several processes."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, metrics: int) -> None:
        self.process = process
        self.address = f"127.0.0.1:{port}"
        self.metrics = [f"http://127.0.0.1:{metrics + number}/metrics" for number in range(COUNT)]

    def children(self) -> set[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return set(map(int, path.read_text().split()))

    async def score(self) -> int:
        """Score over a connection of its own; return the prompt's tokens."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            stub = router_pb2_grpc.RouterStub(channel)
            return (await stub.Score(REQUEST, timeout=30, wait_for_ready=True)).prompt_tokens


def write(path: Path, port: int, metrics: int) -> Path:
    config = path / "router.toml"
    config.write_text(
        f'[server]\ndrain-delay-seconds = 0\nlisten = "127.0.0.1:{port}"\nmetrics-listen = "127.0.0.1:{metrics}"\n'
        f'processes = {COUNT}\n[[models]]\nname = "m"\n'
    )
    return config


async def start(config: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warmpath.cli", "serve", "--config", str(config),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
async def served(tmp_path: Path, held_ports: HeldPorts) -> AsyncIterator[Served]:
    port, metrics = held_ports.take(), held_ports.take(1)
    process = await start(write(tmp_path, port, metrics))
    assert process.stdout
    assert b"2 processes" in await process.stdout.readline()
    yield Served(process, port, metrics)
    if process.returncode is None:
        process.kill()
    await process.wait()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        # A child of nobody is init's to bury, which may take its time.
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


async def test_connections_are_dealt_out_and_every_process_has_metrics(served: Served) -> None:
    async def asked(http: aiohttp.ClientSession) -> list[bool]:
        found = []
        for url in served.metrics:
            async with http.get(url) as response:
                found.append('method="Score"' in await response.text())
        return found

    async with aiohttp.ClientSession() as http:
        while not all(await asked(http)):
            assert await served.score() == 3


async def test_one_that_dies_is_started_again_and_new_calls_are_answered(served: Served) -> None:
    before = served.children()
    assert len(before) == COUNT
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    await until(lambda: is_gone(victim))
    for _ in range(8):
        assert await served.score() == 3
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
    for child in children:
        await until(lambda child=child: is_gone(child))  # type: ignore[misc]


async def test_a_port_that_is_taken_is_named(
    served: Served, tmp_path: Path, held_ports: HeldPorts
) -> None:
    port = int(served.address.rpartition(":")[2])
    other = await start(write(tmp_path, port, held_ports.take(1)))
    _, said = await other.communicate()
    assert other.returncode == 1
    assert f"server.listen: cannot bind 127.0.0.1:{port}" in said.decode()


async def test_what_one_cannot_do_ends_all(served: Served, tmp_path: Path, held_port: int) -> None:
    taken = int(served.metrics[0].split(":")[2].split("/")[0])
    other = await start(write(tmp_path, held_port, taken))
    _, said = await other.communicate()
    assert other.returncode == 1
    assert "server.metrics-listen: cannot bind" in said.decode()
