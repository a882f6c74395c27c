"""The router's HTTP listener: /metrics, /healthz, /readyz."""

import json

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from router.health import Health


def http_app(registry: CollectorRegistry, health: Health) -> web.Application:
    """Return the application that serves the three paths."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        components = {
            name: {"ok": component.ok, "reason": component.reason}
            for name, component in health.report().items()
        }
        return web.Response(
            status=200 if health.ready() else 503,
            text=json.dumps(components),
            content_type="application/json",
        )

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    return app
