"""The router's HTTP listener: /healthz, /readyz, and pages of other rooms."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web

from warmpath.process.certificates import auth_context, names
from warmpath.process.listen import http_listener
from warmpath.router.access.callers import AccessRefusal, Callers, RefusalKind
from warmpath.router.access.entrance import Entrance
from warmpath.router.access.guard import KeptOutMeter
from warmpath.router.pods.discover import SourceState
from warmpath.router.readiness import Readiness

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
    readiness: Readiness,
    entrance: Entrance,
    counts: KeptOutMeter,
    *,
    pages: Pages,
    sources: Sequence[SourceState] = (),
) -> AsyncIterator[str]:
    """Serve while the context is open; yield host:port with the port that was bound.

    /readyz says how long each of `sources` of pods has been silent. Where `listen` is empty, nothing is
    served and the address is empty. Raises OSError if the address cannot be bound.
    """
    if not listen:
        yield ""
        return
    app = http_app(readiness, entrance.callers, counts, pages=pages, sources=sources)
    tls = entrance.tls.http_context if entrance.tls is not None else None
    async with http_listener(app, listen, named="server.metrics-listen", tls=tls) as address:
        yield address


def http_app(
    readiness: Readiness,
    callers: Callers | None,
    counts: KeptOutMeter,
    *,
    pages: Pages,
    sources: Sequence[SourceState] = (),
) -> web.Application:
    """Return the application that serves all paths.

    With `callers`, most `pages` need a role; `counts` counts the refused requests.
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
            text=json.dumps(
                {
                    "ready": is_ready,
                    "conditions": conditions,
                    "sources": {
                        one.name: {
                            "silent_seconds": round(one.silence, 1),
                            "problem": one.trouble.problem if one.trouble else "",
                        }
                        for one in sources
                    },
                }
            ),
            content_type="application/json",
        )

    app = web.Application()
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    for path, page in pages.posts.items():
        app.router.add_post(path, guarded(page))
    for path, page in pages.gets.items():
        app.router.add_get(path, guarded(page))
    for path, page in pages.files.items():
        app.router.add_get(path, page)
    return app


def _refusal(callers: Callers, request: web.Request) -> AccessRefusal | None:
    shown = request.get_extra_info("peercert")
    headers = request.headers.getall("Authorization", [])
    return callers.refusal(request.path, headers, names(auth_context(shown)))
