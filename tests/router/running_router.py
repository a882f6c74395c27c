"""A router that runs, in the test's own process or as one of its own, on free ports, and a connection to it."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc.aio

from warmpath.router.assemble.means import ShadowMode
from warmpath.router.assemble.running import Running, running
from warmpath.router.config.read import parse
from warmpath.router.tracing.steps import NO_TRACER, Tracer

TRANSPORT = os.environ.get("TRANSPORT_UNDER_TEST", "auto")
"""`server.transport` of routers under test; `make test-deep` runs their suites again with grpcio."""


@asynccontextmanager
async def running_router(
    folder: Path,
    tables: str,
    *,
    top: str = "",
    listen: str = "127.0.0.1:0",
    metrics: str = "127.0.0.1:0",
    transport: str = TRANSPORT,
    drain_seconds: float = 0.5,
    server: str = "",
    tracer: Tracer = NO_TRACER,
    shadow: ShadowMode | None = None,
) -> AsyncIterator[tuple[Running, grpc.aio.Channel]]:
    """Run a router at `listen`; its configuration ends with `tables`, its metrics are at `metrics`.

    `server` has further keys of [server].

    A drain ends only after a tenth of its time has passed without a call.
    """
    keys = (
        f'[server]\nlisten = "{listen}"\nmetrics-listen = "{metrics}"\ndrain-seconds = {drain_seconds}\n'
        "drain-delay-seconds = 0\n"
        f'transport = "{transport}"\n{server}\n'
    )
    config = parse(f"{top}\n{keys}{tables}", "test")
    async with (
        running(config, folder, tracer, shadow) as router,
        grpc.aio.insecure_channel(router.address) as channel,
    ):
        yield router, channel


async def metrics_page(address: str) -> str:
    """Return the metrics that are served at `address`, host:port."""
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}/metrics") as response:
        return await response.text()


async def metrics_of(address: str) -> dict[str, float]:
    """Return the metrics that are served at `address`, by name and labels."""
    lines = (await metrics_page(address)).splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


class Serving:
    """A router's process that is ready, with a file that the test rewrites."""

    def __init__(self, file: Path, process: Process, line: str) -> None:
        self.file = file
        self.process = process
        self.line = line
        """What it printed."""
        self.address = line.removeprefix("warmpath serves gRPC on ").split(",")[0].strip()
        self.lines: list[str] = []

    async def said(self, pattern: str) -> str:
        """Return the next line of the log that has a pattern; the test's own timeout bounds it."""
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            self.lines.append(raw.decode())
            if re.search(pattern, self.lines[-1]):
                return self.lines[-1]
        raise AssertionError(self.lines)

    async def reload(self, text: str) -> None:
        self.file.write_text(text)
        self.process.send_signal(signal.SIGHUP)


async def started(file: Path, text: str, **environment: str) -> Process:
    await asyncio.to_thread(file.write_text, text)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warmpath.cli", "serve", "--config", str(file),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environment,
    )  # fmt: skip


@asynccontextmanager
async def serving(file: Path, text: str) -> AsyncIterator[Serving]:
    process = await started(file, text)
    try:
        assert process.stdout is not None
        yield Serving(file, process, (await process.stdout.readline()).decode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
