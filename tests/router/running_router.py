"""A router that runs in the test's own process, on free ports, and a connection to it."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc.aio

from warmpath.router.assemble.running import Running, running
from warmpath.router.config.read import parse
from warmpath.router.tracing.tracer import NO_TRACER, Tracer

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
        running(config, folder, tracer) as router,
        grpc.aio.insecure_channel(router.address) as channel,
    ):
        yield router, channel


async def metrics_page(address: str) -> str:
    """Return the metrics that are served at `address`, host:port."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{address}/metrics") as response,
    ):
        return await response.text()


async def metrics_of(address: str) -> dict[str, float]:
    """Return the metrics that are served at `address`, by name and labels."""
    lines = (await metrics_page(address)).splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}
