"""The fronts that are measured: each is started before the same pods, and its processor time is read."""

import asyncio
import contextlib
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from warmpath.cli.child import START_SECONDS, Child, ChildError
from warmpath.cli.gateway.bootstrap import GatewayDescription
from warmpath.cli.gateway.process import EnvoyProcess, find_envoy
from warmpath.lab.bench.stand.fronts import without_router
from warmpath.lab.bench.stand.servers import busy, family
from warmpath.lab.local.cluster import MODEL
from warmpath.lab.local.ports import HOST
from warmpath.process.address import HostPort
from warmpath.router.config.schema import Config, ModelSpec, PodSpec, ServerTable
from warmpath.router.config.write import as_toml

ENVOY = "envoy"
"""The name of Envoy's processes."""
LISTENS = b"Envoy listens on "
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pod:
    """The addresses of a pod."""

    address: str
    """host:port of its HTTP."""
    events: str
    """Endpoint of its events; `replay`: of their replay."""
    replay: str


@dataclass(frozen=True, slots=True)
class Stand:
    """What each front is started with."""

    pods: Sequence[Pod]
    tokenizer: Path
    """Folder of the pods' tokenizer, with a chat template."""
    folder: Path
    """Folder for files and logs."""


@dataclass(frozen=True, slots=True)
class Front:
    """A running front: where clients connect, and the first of its processes."""

    name: str
    address: HostPort
    process: int | None
    """None: there is no front, and clients connect to a pod."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Processor seconds of a front's processes."""

    router: float
    """Of all processes other than Envoy."""
    envoy: float

    def __sub__(self, before: "Busy") -> "Busy":
        return Busy(self.router - before.router, self.envoy - before.envoy)


def processor(front: Front) -> Busy:
    """Return the processor seconds that a front's processes have used."""
    router = envoy = 0.0
    for one in family(front.process) if front.process else ():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{one}/comm").read_text(encoding="utf-8").strip() == ENVOY:
                envoy += busy(one)
            else:
                router += busy(one)
    return Busy(router, envoy)


Start = Callable[[str, Stand], AbstractAsyncContextManager[Front]]
"""Starts a front of this name."""


@asynccontextmanager
async def no_front(name: str, stand: Stand) -> AsyncIterator[Front]:
    """Yield the first pod itself."""
    yield Front(name, HostPort.of(stand.pods[0].address), None)


@asynccontextmanager
async def envoy_alone(name: str, stand: Stand) -> AsyncIterator[Front]:
    """Run the gateway's Envoy with round robin and no router."""
    nowhere = HostPort(HOST, 0)
    pods = [HostPort.of(one.address) for one in stand.pods]
    gateway = GatewayDescription(nowhere, nowhere, pods)
    async with EnvoyProcess(find_envoy(None), gateway, without_router) as envoy:
        yield Front(name, HostPort.of(envoy.address), envoy.pid)


def warmpath(python: Path = Path(sys.executable)) -> Start:
    """Return what starts `warmpath gateway` with the environment of this Python."""

    @asynccontextmanager
    async def start(name: str, stand: Stand) -> AsyncIterator[Front]:
        file = stand.folder / f"{name.replace(' ', '-')}.toml"
        file.write_text(_configuration(stand), encoding="utf-8")
        words = (
            # Its modules are those of this Python's environment, not of the folder we are in.
            shutil.which("env") or "env", "PYTHONSAFEPATH=1", str(python),
            "-m", "warmpath.cli", "gateway", f"--config={file}", f"--listen={HOST}:0",
            f"--out={file.with_suffix('')}",
        )  # fmt: skip
        async with started(name, stand, words, _listens, stdout=PIPE) as (process, address):
            yield Front(name, address, process)

    return start


async def _listens(child: Child, process: Process) -> HostPort:
    """Return the address that `warmpath gateway` prints."""
    assert process.stdout is not None
    async for raw in process.stdout:
        if raw.startswith(LISTENS):
            return HostPort.of(raw.removeprefix(LISTENS).decode().strip())
    await process.wait()
    child.check()
    raise ChildError(f"{child.name} has closed its standard output")


def _configuration(stand: Stand) -> str:
    local = f"{HOST}:0"
    pods = [
        PodSpec(f"pod-{at}", MODEL, one.address, events=one.events, replay=one.replay)
        for at, one in enumerate(stand.pods)
    ]
    return as_toml(
        Config(
            models=[ModelSpec(MODEL, tokenizer=str(stand.tokenizer))],
            server=ServerTable(listen=local, metrics_listen=local, drain_delay_seconds=0),
            pods=pods,
        )
    )


@asynccontextmanager
async def started(
    name: str,
    stand: Stand,
    words: Sequence[str],
    is_up: Callable[[Child, Process], Awaitable[T]],
    *,
    stdout: int | None = None,
) -> AsyncIterator[tuple[int, T]]:
    """Run a program; yield its id, and the result of `is_up`, which waits until clients may connect.

    Its standard output goes to its log unless `stdout` says else. Raises ChildError if it ends, with the
    end of its log, or is silent.
    """
    log = stand.folder / f"{name.replace(' ', '-')}.log"
    child = Child(name, log)
    try:
        with log.open("ab") as file:
            out = file.fileno() if stdout is None else stdout
            process = await child.launch(*words, stdout=out, stderr=file)
        try:
            async with asyncio.timeout(START_SECONDS):
                found = await is_up(child, process)
        except TimeoutError:
            raise ChildError(f"{name} did not start in {START_SECONDS:g} s") from None
        except ChildError as error:
            raise ChildError(f"{error}: {log.read_text()[-2000:]}") from error
        yield process.pid, found
    finally:
        await child.stop()
