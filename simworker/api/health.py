"""What probes and scrapers ask."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from simworker.api.errors import error_response, json_response
from simworker.server.worker import Worker


class Health:
    """Whether the worker is there, what it is, and how it fares."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> list[web.RouteDef]:
        """Return what is served."""
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
        """Serve 200, and 503 while draining. An engine that hangs is not noticed, as in vLLM."""
        if self._worker.draining:
            return error_response("the worker is draining", 503)
        return web.Response()

    async def version(self, _: web.Request) -> web.Response:
        """Serve the version of the engine that is played."""
        return json_response({"version": self._worker.version})

    async def load(self, _: web.Request) -> web.Response:
        """Serve how many requests are under way."""
        return json_response({"server_load": self._worker.in_flight})

    async def metrics(self, _: web.Request) -> web.Response:
        """Serve Prometheus."""
        body = generate_latest(self._worker.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def event_sources(self, _: web.Request) -> web.Response:
        """Serve each rank's event publisher, by rank."""
        return json_response(self._worker.event_sources())
