"""The router's HTTP listener: /metrics, /healthz, /readyz, and pages of other rooms."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from indexer.process.certificate_names import auth_context, names
from indexer.process.listen import http_listener
from router.access.callers import AccessRefusal, Callers, RefusalKind
from router.access.entrance import Entrance
from router.access.guard import KeptOutMeter
from router.readiness import Readiness

log = logging.getLogger(__name__)

STATUSES = {RefusalKind.UNKNOWN: 401, RefusalKind.ROLE: 403}

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages(NamedTuple):
    """Pages of other rooms, by path."""

    posts: Mapping[str, Page] = {}
    """Those that take POST. Each needs a role (`router.access.roles`)."""
    gets: Mapping[str, Page] = {}
    """Those that take GET. Each needs a role."""
    files: Mapping[str, Page] = {}
    """Those that take GET and are open to anybody."""


@asynccontextmanager
async def serving_http(
    listen: str,
    registry: CollectorRegistry,
    readiness: Readiness,
    entrance: Entrance,
    counts: KeptOutMeter,
    *,
    pages: Pages,
    most_bytes: int,
) -> AsyncIterator[str]:
    """Serve while the context is open; yield host:port with the port that was bound.

    A body may have `most_bytes`. Where `listen` is empty, nothing is served and the address is empty.
    Raises OSError if the address cannot be bound.
    """
    if not listen:
        yield ""
        return
    app = http_app(
        registry, readiness, entrance.callers, counts, pages=pages, most_bytes=most_bytes
    )
    tls = entrance.tls.http_context if entrance.tls is not None else None
    async with http_listener(app, listen, named="server.metrics-listen", tls=tls) as address:
        yield address


def http_app(
    registry: CollectorRegistry,
    readiness: Readiness,
    callers: Callers | None,
    counts: KeptOutMeter,
    *,
    pages: Pages,
    most_bytes: int,
) -> web.Application:
    """Return the application that serves all paths.

    With `callers`, /metrics and most `pages` need a role; `counts` counts the refused requests.
    """

    def guarded(page: Page) -> Page:
        async def checked(request: web.Request) -> web.StreamResponse:
            refusal = _refusal(callers, request) if callers is not None else None
            if refusal is None:
                return await page(request)
            counts.kept_out(request.path, refusal.why.value)
            log.warning("%s: refused to %s: %s", request.path, request.remote, refusal.text)
            headers = {"WWW-Authenticate": "Bearer"} if refusal.why is RefusalKind.UNKNOWN else {}
            status = STATUSES[refusal.why]
            return web.json_response({"error": refusal.text}, status=status, headers=headers)

        return checked

    async def metrics(request: web.Request) -> web.Response:
        # OpenMetrics, which alone has exemplars, only for those who ask for it.
        encoder, kind = _encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(registry), headers={"Content-Type": kind})

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        conditions = {
            name: {
                "required": readiness.requires(name),
                "holds": condition.holds,
                "reason": condition.reason,
            }
            for name, condition in readiness.report().items()
        }
        is_ready = readiness.ready()
        return web.Response(
            status=200 if is_ready else 503,
            text=json.dumps({"ready": is_ready, "conditions": conditions}),
            content_type="application/json",
        )

    app = web.Application(client_max_size=most_bytes)
    app.router.add_get("/metrics", guarded(metrics))
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    for path, page in pages.posts.items():
        app.router.add_post(path, guarded(page))
    for path, page in pages.gets.items():
        app.router.add_get(path, guarded(page))
    for path, page in pages.files.items():
        app.router.add_get(path, page)
    return app


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return what writes the metrics in a form that is accepted, and the form's content type."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # The library compares versions that are no numbers.
        return choose_encoder("")


def _refusal(callers: Callers, request: web.Request) -> AccessRefusal | None:
    shown = request.get_extra_info("peercert")
    headers = request.headers.getall("Authorization", [])
    return callers.refusal(request.path, headers, names(auth_context(shown)))
