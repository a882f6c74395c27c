"""Endpoints for probes and scrapers."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from warmpath.lab.simworker.api.errors import error_response, json_response
from warmpath.lab.simworker.server.worker import Worker


class Health:
    """Health, version, load, metrics and event sources of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/health", self.health),
            web.get("/ping", self.health),
            web.post("/ping", self.health),
            web.get("/version", self.version),
            web.get("/load", self.load),
            web.get("/metrics", self.metrics),
            web.get("/kv_event_sources", self.event_sources),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200, or 503 while draining. As in vLLM, an engine that hangs goes unnoticed."""
        if self._worker.draining:
            return error_response("the worker is draining", 503)
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        """Answer with the version of the simulated engine."""
        return json_response({"version": self._worker.version})

    async def load(self, _: web.Request) -> web.Response:
        """Answer with the number of requests under way."""
        return json_response({"server_load": self._worker.in_flight})

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer with the metrics in Prometheus' text format."""
        body = generate_latest(self._worker.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def event_sources(self, _: web.Request) -> web.Response:
        """Answer with the addresses of each rank's event publisher."""
        return json_response(self._worker.event_sources())
