"""An engine's pages, the pod of one rank that it is, and a prober's looks at it."""

import asyncio
import contextlib
import json
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self

from aiohttp import web

from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from tests.servers.http import listening
from warmpath.indexer.trust import Trust
from warmpath.router.load.engine_metrics import Observed
from warmpath.router.pods.probe import Links, Prober
from warmpath.router.pods.table import Pod, Status


class Engine:
    """Has /health, /metrics, /v1/models, and the pages of its version and its sleep."""

    def __init__(self, pod: Pod | None = None) -> None:
        """Be the engine of a new pod, `p`, whose events arrive; or have another one looked at."""
        self.health = 200
        self.asked: list[str] = []
        self.connections: set[object] = set()
        self.missing: set[str] = {"/is_paused", "/is_sleeping"}
        self.is_paused = self.is_sleeping = False
        self.late: set[str] = set()
        """Paths that are never answered; looks then wait only for a moment."""
        self.cut: Callable[[web.Request], Awaitable[None]] | None = None
        """Cuts the connection on which /health is asked for."""
        self.version_path, self.version = "/version", "0.32.0"
        self.models = b'{"object":"list","data":[{"id":"m","object":"model"},{"id":"tuned"}]}'
        self.metrics = (
            b'# HELP x\nvllm:cache_config_info{block_size="16",num_gpu_blocks="97"} 1.0\n'
        )
        self.key, self.refusal = "", 401
        """The API key that it asks for, if any, and the status for those who do not know it."""
        self.open_pages = {"/health", "/metrics"}
        """The pages for which it asks for none."""
        self.rank = new_ingest(MemoryIndex).add(source(has_replay=False))
        self.rank.connected()
        self.pod = pod or Pod("p", "", "m", (self.rank,))
        self.now, self.answered = 100.0, -math.inf
        """The prober's clock, four seconds a look, and when the pod last answered a request."""
        self.ended: list[str] = []
        self.seen: list[tuple[str, int, Observed]] = []
        links = Links(
            observed=lambda *load: self.seen.append(load),
            ended=lambda pod: self.ended.append(pod.id),
            answered=lambda _: self.answered,
        )
        self.prober = Prober(self.pod, lambda: 1, 5, links=links, clock=lambda: self.now)

    @property
    def status(self) -> Status:
        return self.pod.status

    @property
    def trust(self) -> Trust:
        return self.rank.trust

    def list_adapters(self, *names: str) -> None:
        """List the model `m` and adapters of it."""
        cards = [{"id": "m", "parent": None}, *({"id": name, "parent": "m"} for name in names)]
        self.models = json.dumps({"data": cards}).encode()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path in self.late:
            await asyncio.Event().wait()
        self.connections.add(request.transport)
        if request.path == "/health" and self.cut is not None:
            await self.cut(request)
        shown = request.headers.get("Authorization", "Bearer ")
        if request.path not in self.open_pages and shown != f"Bearer {self.key}":
            return web.Response(status=self.refusal)
        if request.path in self.missing:
            raise web.HTTPNotFound
        if request.path == "/is_paused":
            return web.json_response({"is_paused": self.is_paused})
        if request.path == "/is_sleeping":
            return web.json_response({"is_sleeping": self.is_sleeping})
        if request.path == "/health":
            return web.Response(status=self.health, text="said at length" * 9999)
        if request.path == self.version_path:
            return web.json_response({"version": self.version})
        return web.Response(body=self.metrics if "metrics" in request.path else self.models)

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Self]:
        async with listening(self.answer, tls) as self.pod.address:
            yield self

    async def look(self, times: int = 1) -> None:
        self.prober.timeout = 0.05 if self.late else 300.0
        with contextlib.closing(self.prober):
            for _ in range(times):
                self.now += 4.0
                await self.prober.look()
