"""A cluster on loopback: simulated workers and a router, each a process of its own."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from warmpath.cli.child import Child, ChildError, Process, addresses_of
from warmpath.lab.local.ports import HOST, HeldPorts
from warmpath.router.config.schema import (
    Config,
    ModelSpec,
    PickTable,
    PodSpec,
    ProbeTable,
    ServerTable,
)
from warmpath.router.config.write import as_toml
from warmpath.scorer.policies.warmpath import Warmpath
from warmpath.scorer.policy import DEFAULT

MODEL = "demo"
VOCAB_SIZE = 32_000
LEAST_INTERVAL = 0.2
"""Shortest interval of the router's probes, in seconds."""
LOOK_SECONDS = 0.2
"""Seconds between two looks at whether a process has ended."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of the simulated workers."""

    blocks: int
    block_size: int
    speed: float
    """Modelled seconds per real second."""
    vocab_size: int
    tokenizer: Path | None = None
    """Folder of a tokenizer, for texts and chats; None: workers take token ids only."""
    stream_interval: int = 64
    """Tokens of a chunk of a streamed answer."""


async def report_ends(
    children: Sequence[Child], report: Callable[[Child, ChildError], None]
) -> NoReturn:
    """Report each child process that has ended unexpectedly, once."""
    reported: set[Child] = set()
    while True:
        for child in children:
            try:
                child.check()
            except ChildError as error:
                if child not in reported:
                    reported.add(child)
                    report(child, error)
        await asyncio.sleep(LOOK_SECONDS)


@dataclass(slots=True)
class Worker:
    """One simulated worker and its addresses."""

    id: str
    process: Process
    address: str = "127.0.0.1:0"
    events: str = "tcp://127.0.0.1:*"
    replay: str = "tcp://127.0.0.1:*"

    @classmethod
    def held(cls, name: str, log: Path, ports: HeldPorts) -> Self:
        """Return a worker whose ports stay free for it while it is down."""
        api, events, replay = (f"{HOST}:{ports.take()}" for _ in range(3))
        return cls(name, Process(name, log), api, f"tcp://{events}", f"tcp://{replay}")

    async def start(self, settings: WorkerSettings, *options: str) -> None:
        """Start the worker, at the same ports as before if it ran before."""
        line = await self.process.start(
            "warmpath.lab.simworker",
            f"--model={MODEL}",
            f"--listen={self.address}",
            f"--events-endpoint={self.events}",
            f"--replay-endpoint={self.replay}",
            f"--blocks={settings.blocks}",
            f"--block-size={settings.block_size}",
            f"--speed={settings.speed}",
            f"--vocab-size={settings.vocab_size}",
            f"--stream-interval={settings.stream_interval}",
            *([f"--tokenizer={settings.tokenizer}"] if settings.tokenizer else []),
            *options,
        )
        ready = json.loads(line)
        self.address, self.events, self.replay = (
            ready["address"], ready["events"], ready["replay"],
        )  # fmt: skip


class Cluster:
    """Workers, and a router that follows them. An async context manager."""

    def __init__(self, settings: WorkerSettings, pods: int, logs: Path, *, policy: str) -> None:
        """`policy` is the router's; empty: there is no router."""
        self.router_address = ""
        self.page_address = ""
        """host:port of the router's live page."""
        self._policy = policy
        self._settings = settings
        self._router = Process("the router", logs / "router.log") if policy else None
        names = [f"pod-{number + 1}" for number in range(pods)]
        self._held = HeldPorts()
        self.workers = [Worker.held(name, logs / f"{name}.log", self._held) for name in names]
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(worker.start(self._settings) for worker in self.workers))
            if self._router is not None:
                await self._start_router(self._router)
        except BaseException:
            await self._stop()
            raise
        return self

    async def _start_router(self, router: Process) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warmpath-")
        path = Path(self._folder.name) / "router.toml"
        path.write_text(self._config(), encoding="utf-8")
        line = await router.start("warmpath.cli", "serve", "--config", str(path))
        self.router_address, self.page_address = addresses_of(line)

    def _config(self) -> str:
        local, settings = "127.0.0.1:0", self._settings
        model = ModelSpec(
            name=MODEL, vocab_size=settings.vocab_size, tokenizer=str(settings.tokenizer or "")
        )
        pods = [
            PodSpec(
                id=one.id, model=MODEL, address=one.address, events=one.events, replay=one.replay
            )
            for one in self.workers
        ]
        server = ServerTable(listen=local, metrics_listen=local, drain_delay_seconds=0)
        # Probes cost real CPU time, so their interval has a lower bound.
        interval = max(LEAST_INTERVAL, ProbeTable().interval_seconds / settings.speed)
        return as_toml(
            Config(
                models=[model], server=server, probe=ProbeTable(interval_seconds=interval),
                pick=_pick(settings.speed, interval, policy=self._policy),
                pods=pods,
            )
        )  # fmt: skip

    @property
    def processes(self) -> list[Process]:
        """The workers' processes and the router's."""
        workers = [worker.process for worker in self.workers]
        return workers if self._router is None else [*workers, self._router]

    def check(self) -> None:
        """Raise ChildError if a process has ended unexpectedly."""
        for process in self.processes:
            process.check()

    async def restart(self, worker: Worker) -> None:
        """Start a killed worker again, with an empty cache."""
        await worker.process.stop()
        await worker.start(self._settings)

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self.processes))
        self._held.close()
        if self._folder is not None:
            self._folder.cleanup()


def _pick(speed: float, interval: float, *, policy: str) -> PickTable:
    """Return [pick] for workers that run `speed` times faster, probed each `interval` seconds."""
    usual = PickTable()
    return PickTable(
        load_stale_seconds=2.5 * interval,
        prefill_base_seconds=usual.prefill_base_seconds / speed,
        prefill_token_seconds=usual.prefill_token_seconds / speed,
        prefill_context_seconds=usual.prefill_context_seconds / speed,
        policy=policy,
        options={"mu": Warmpath().mu / speed} if policy == DEFAULT else {},
    )
