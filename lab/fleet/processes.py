"""The processes of a fleet with one shared index: a Redis Cluster, workers, publishers and routers."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, Self

from warmpath.cli.child import Child, Process
from warmpath.lab.local.cluster import MODEL, VOCAB_SIZE, Worker, WorkerSettings, report_ends
from warmpath.lab.local.ports import HOST, HeldPorts
from warmpath.lab.local.redis_cluster import RedisCluster
from warmpath.router.config.schema import Config, ModelSpec, PodSpec, ServerTable, SharedIndexTable
from warmpath.router.config.write import as_toml

SPEED = 12.0
"""Modelled seconds per real second."""
REDIS_SECONDS = 0.5
STOP_SECONDS = 1.5
"""Longest wait for a process to end before it is killed; for Redis it is REDIS_SECONDS."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The number and settings of the processes."""

    masters: int
    pods: int
    routers: int
    mode: Literal["replica", "shared"]
    server: str
    requests: int
    out: Path


def file_names(settings: ProcessSettings) -> list[str]:
    """Return the names of the configuration and log files of the processes, except Redis."""
    counts = {"pod": settings.pods, "publisher": settings.pods, "router": settings.routers}
    logs = [f"{kind}-{one + 1}.log" for kind, count in counts.items() for one in range(count)]
    return [*logs, *(f"router-{one + 1}.toml" for one in range(settings.routers))]


class FleetProcesses:
    """All processes of a fleet; an async context manager that ends them."""

    def __init__(self, settings: ProcessSettings, report: Callable[[str], None]) -> None:
        """`report` receives a line about each step of the start."""
        self._settings = settings
        self._report = report
        self.folder = settings.out
        self._stack = AsyncExitStack()
        self.redis = RedisCluster(settings.server, settings.masters, settings.out)
        self.workers = [Worker(one.name, one) for one in self._new("pod", settings.pods)]
        self.publishers = self._new("publisher", settings.pods)
        self.routers = self._new("router", settings.routers)
        self.published: list[str] = []
        """The publishers' addresses."""
        self.addresses: list[str] = []
        """The routers' addresses."""

    def _new(self, kind: str, count: int) -> list[Process]:
        names = (f"{kind}-{number + 1}" for number in range(count))
        return [Process(name, self.folder / f"{name}.log") for name in names]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.redis.stop, REDIS_SECONDS)
            self._report(
                f"starting a cluster of {self._settings.masters} {self._settings.server} servers"
            )
            await self.redis.start()
            stack.push_async_callback(self._stop)
            self._report(f"starting the workers ({len(self.workers)}), each with a publisher")
            workers = WorkerSettings(24_000, 32, SPEED, VOCAB_SIZE)
            await asyncio.gather(*(worker.start(workers) for worker in self.workers))
            pairs = zip(self.workers, self.publishers, strict=True)
            self.published = await asyncio.gather(*(self._publish(*pair) for pair in pairs))
            # The configurations name held ports, so that a router can be restarted by hand.
            ports = stack.enter_context(HeldPorts())
            self._report(f"starting the routers ({len(self.routers)})")
            self.addresses = [f"{HOST}:{ports.take()}" for _ in self.routers]
            routers = [*zip(self.routers, self.addresses, strict=True)]
            # The first router compiles the index if necessary; the others load the compiled code.
            await self._start_router(*routers[0])
            await asyncio.gather(*(self._start_router(*pair) for pair in routers[1:]))
            self._stack = stack.pop_all()
        return self

    async def _stop(self) -> None:
        """Stop all processes except Redis, which publishers still need to give up their claims."""
        await asyncio.gather(*(process.stop(STOP_SECONDS) for process in self._processes))

    async def _publish(self, worker: Worker, publisher: Process) -> str:
        line = await publisher.start(
            "warmpath.publisher.main",
            f"--pod={worker.id}",
            f"--model={MODEL}",
            f"--events={worker.events}",
            f"--replay={worker.replay}",
            "--listen=127.0.0.1:0",
            "--metrics-listen=",
            f"--redis={self.redis.url}",
        )
        return str(json.loads(line)["address"])

    async def _start_router(self, process: Process, address: str) -> None:
        config = self._settings.out / f"{process.name}.toml"
        config.write_text(self._config(address), encoding="utf-8")
        await process.start("warmpath.cli", "serve", "--config", str(config))

    def _config(self, address: str) -> str:
        pods = [PodSpec(id=one.id, model=MODEL, address=one.address) for one in self.workers]
        return as_toml(
            Config(
                models=[ModelSpec(name=MODEL, vocab_size=VOCAB_SIZE)],
                server=ServerTable(listen=address, metrics_listen="", drain_delay_seconds=0),
                shared_index=SharedIndexTable(
                    url=self.redis.url, mode=self._settings.mode, share_bookings=True
                ),
                pods=pods,
            )
        )

    @property
    def _processes(self) -> list[Process]:
        return [*(worker.process for worker in self.workers), *self.publishers, *self.routers]

    @property
    def _watched(self) -> list[Child]:
        return [*self.redis.nodes, *self._processes]

    def check(self) -> None:
        """Raise ChildError if a process has ended unexpectedly."""
        for process in self._watched:
            process.check()

    async def report_ends(self, report: Callable[[str], None]) -> NoReturn:
        """Report each process that ends unexpectedly, once, with the command that restarts it."""
        await report_ends(
            self._watched,
            lambda child, error: report(f"{error}; to start it again: {child.command}"),
        )

    def all_addresses(self) -> dict[str, str | list[str]]:
        workers = [worker.address for worker in self.workers]
        kinds = {"workers": workers, "publishers": self.published, "routers": self.addresses}
        return {"redis": self.redis.url, **kinds}

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
