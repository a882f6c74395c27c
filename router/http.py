"""The router's HTTP listener: /metrics, /healthz, /readyz."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from indexer.process.certificate_names import auth_context, names
from indexer.process.listen import http_listener
from router.access.callers import Callers, Refusal, Why
from router.access.entrance import Entrance
from router.access.guard import Counts
from router.health import Health

STATUSES = {Why.UNKNOWN: 401, Why.ROLE: 403}


@asynccontextmanager
async def serving_http(
    listen: str, registry: CollectorRegistry, health: Health, entrance: Entrance, counts: Counts
) -> AsyncIterator[str]:
    """Serve while the context is open; yield host:port with the port that was bound.

    Where `listen` is empty, nothing is served and the address is empty. Raises OSError if the address
    cannot be bound.
    """
    if not listen:
        yield ""
        return
    app = http_app(registry, health, entrance.callers, counts)
    tls = entrance.tls.http_context if entrance.tls is not None else None
    async with http_listener(app, listen, named="server.metrics-listen", tls=tls) as address:
        yield address


def http_app(
    registry: CollectorRegistry, health: Health, callers: Callers | None, counts: Counts
) -> web.Application:
    """Return the application that serves the three paths.

    With `callers`, only those with the role may ask for /metrics; `counts` counts the others.
    """

    async def metrics(request: web.Request) -> web.Response:
        refusal = _refusal(callers, request) if callers is not None else None
        if refusal is not None:
            counts.kept_out(request.path, refusal.why.value)
            headers = {"WWW-Authenticate": "Bearer"} if refusal.why is Why.UNKNOWN else {}
            status = STATUSES[refusal.why]
            return web.Response(status=status, text=f"{refusal.text}\n", headers=headers)
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


def _refusal(callers: Callers, request: web.Request) -> Refusal | None:
    shown = request.get_extra_info("peercert")
    headers = request.headers.getall("Authorization", [])
    return callers.refusal(request.path, headers, names(auth_context(shown)))
