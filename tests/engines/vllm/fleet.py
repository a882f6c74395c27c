"""The processes of a run: two engines, their publishers, Redis, two routers, and Envoy.

pod `plugin`:  vLLM, two data-parallel ranks, its publisher started by vLLM's plug-in  ─┐
pod `sidecar`: vLLM, one rank, its publisher a process beside it                       ─┼─► Redis
                                                                                        │
client ─► Envoy ─► router `replica` (a copy of the index), router `shared` (asks Redis) ◄┘
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import aiohttp

from tests.engines.vllm.published import Published
from tests.servers.redis_server import RedisServer
from tests.vllm.engine import BLOCKS, FOLDER, OPTIONS, Engine, model_folder
from warmpath.cli.child import Process
from warmpath.client.async_client import AsyncClient
from warmpath.lab.local.ports import HeldPorts

SERVED = (
    *OPTIONS,
    "--enable-scale-out",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
)
MODES = ("replica", "shared")
PLUGIN, SIDECAR = "plugin", "sidecar"
Rank = tuple[str, int]
"""A pod's name and the number of its rank."""
SECONDS = 300.0
"""Longest wait for a state."""


class Fleet:
    """All processes; an async context manager that starts and ends them."""

    def __init__(self, folder: Path) -> None:
        """`folder` gets configurations, the model and logs."""
        self._folder = folder
        self._stack = AsyncExitStack()
        self.redis = RedisServer("redis")
        self.engines: dict[str, Engine] = {}
        self.publisher = Process("the publisher", folder / "publisher.log")
        self._published_at = 0
        self.routers = {mode: Process(mode, folder / f"{mode}.log") for mode in MODES}
        self.clients: dict[str, AsyncClient] = {}
        self.gateway = Process("the gateway", folder / "gateway.log")
        self.gateway_base = ""
        self.batches: dict[Rank, Published] = {}

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            ports = stack.enter_context(HeldPorts())
            stack.enter_context(self.redis)
            model = self._folder / "model"
            if not model.exists():
                model_folder(FOLDER / "tiny-llama", model)
            for pod, ranks in ((PLUGIN, 2), (SIDECAR, 1)):
                listen, events, replay = ports.take(), ports.take(1), ports.take(1)
                engine = Engine(
                    listen, events, replay, self._folder / f"{pod}.log", SERVED, str(model), pod=pod,
                    ranks=ranks, publisher=ports.take() if pod == PLUGIN else 0,
                    publishing=(f"--redis={self.redis.url}", f"--blocks={BLOCKS}"),
                )  # fmt: skip
                self.engines[pod] = engine
                self.batches |= {
                    (pod, rank): Published(f"tcp://127.0.0.1:{replay + rank}")
                    for rank in range(ranks)
                }
            self._published_at, gateway_port = ports.take(), ports.take()
            addresses = {mode: f"127.0.0.1:{ports.take()}" for mode in MODES}
            for mode, address in addresses.items():
                (self._folder / f"{mode}.toml").write_text(self._config(mode, address), "utf-8")
            stack.push_async_callback(self._stop)
            for engine in self.engines.values():
                engine.start()
            await self.start_publisher()
            await asyncio.gather(*(engine.up() for engine in self.engines.values()))
            for mode, address in addresses.items():
                await self.start_router(mode)
                client = AsyncClient(address, model="tiny", timeout=60)
                self.clients[mode] = await stack.enter_async_context(client)
            self.gateway_base = f"http://127.0.0.1:{gateway_port}"
            await self.gateway.start(
                "warmpath.cli", "gateway", f"--router={addresses['replica']}",
                f"--listen=127.0.0.1:{gateway_port}",
            )  # fmt: skip
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _stop(self) -> None:
        for published in self.batches.values():
            published.close()
        for process in (self.gateway, *self.routers.values(), self.publisher):
            await process.stop(within=30)
        # An engine that still starts does not hear SIGTERM.
        for engine in self.engines.values():
            if engine.is_running:
                engine.kill()

    def _config(self, mode: str, address: str) -> str:
        lines = [
            f'[server]\nlisten = "{address}"\nmetrics-listen = ""\ndrain-delay-seconds = 0',
            # Longer than on a machine of its own: here the engines compute beside it.
            "[limits]\ntokenize-seconds = 60\nwait-seconds = 60",
            "[endpoint-picker]\npick-seconds = 60",
            f'[shared-index]\nurl = "{self.redis.url}"\nmode = "{mode}"\ndeadline-seconds = 10',
            "share-bookings = true",
            '[[models]]\nname = "tiny"\ntokenizer = "model"\nadapters = ["tuned"]',
        ]
        for pod, engine in self.engines.items():
            lines += [
                f'[[pods]]\nid = "{pod}"\nmodel = "tiny"\naddress = "127.0.0.1:{engine.port}"',
                f"ranks = {engine.ranks}",
            ]
        return "\n".join(lines) + "\n"

    async def start_publisher(self) -> None:
        """Start the sidecar."""
        options = self.engines[SIDECAR].publisher_options(self._published_at)
        await self.publisher.start("warmpath.publisher.main", *options)

    async def start_router(self, mode: str) -> None:
        path = self._folder / f"{mode}.toml"
        await self.routers[mode].start("warmpath.cli", "serve", "--config", str(path))

    async def start_engine(self, pod: str) -> None:
        """Start an engine again at its ports."""
        engine = self.engines[pod]
        for rank in range(engine.ranks):
            self.batches[pod, rank].forget()
        engine.start()
        await engine.up()

    async def gateway_serves(self) -> None:
        """Wait until a request passes Envoy and the picker."""
        async with aiohttp.ClientSession() as http, asyncio.timeout(SECONDS):
            while True:
                async with http.get(f"{self.gateway_base}/v1/models") as response:
                    if response.status == 200 and "x-warmpath-pod" in response.headers:
                        return
                await asyncio.sleep(0.1)

    async def followed(self) -> None:
        """Wait until both routers have followed every batch that the engines have published."""
        await asyncio.gather(*(self.batches[rank].catch_up() for rank in self.running))
        wanted = {
            rank: range(self.batches[rank].last_change, len(self.batches[rank].batches))
            for rank in self.running
        }
        seen: dict[Rank, int] = {}
        try:
            async with asyncio.timeout(SECONDS):
                for client in self.clients.values():
                    while not _reaches(seen := await self._sequences(client), wanted):
                        await asyncio.sleep(0.02)
        except TimeoutError:
            raise TimeoutError(f"a router has {seen}, of {wanted}") from None

    @property
    def running(self) -> list[Rank]:
        """The ranks of the engines that run."""
        return [rank for rank in self.batches if self.engines[rank[0]].is_running]

    async def _sequences(self, client: AsyncClient) -> dict[Rank, int]:
        return {
            (pod.id, rank.rank): rank.sequence if rank.HasField("sequence") else -1
            for pod in (await client.pods()).pods
            for rank in pod.ranks
        }


def _reaches(seen: dict[Rank, int], wanted: dict[Rank, range]) -> bool:
    # A number beyond the last one is of the engine's life before.
    return all(seen[rank] in numbers for rank, numbers in wanted.items())
