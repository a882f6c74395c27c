"""The router's HTTP listener: /healthz, /readyz, the live page's files, and pages of other rooms."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from aiohttp import web

from warmpath.process.certificates import auth_context, names
from warmpath.router.access.entrance import Entrance
from warmpath.router.metrics.calls import Metrics
from warmpath.router.pods.discover import SourceState
from warmpath.router.readiness import Readiness

log = logging.getLogger(__name__)

STATUSES = {"unknown": 401, "role": 403}

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages(NamedTuple):
    """Pages of other rooms, by path."""

    posts: Mapping[str, Page] = {}
    """Those that take POST. Each needs a role (`router.access.entrance`)."""
    gets: Mapping[str, Page] = {}
    """Those that take GET. Each needs a role."""
    files: Mapping[str, Page] = {}
    """Those that take GET and are open to anybody."""


def http_app(
    readiness: Readiness,
    entrance: Entrance,
    counts: Metrics,
    *,
    pages: Pages,
    sources: Sequence[SourceState] = (),
) -> web.Application:
    """Return the application that serves all paths.

    `entrance` says who may ask for most `pages`; `counts` counts the refused requests. /readyz says how
    long each of `sources` of pods has been silent.
    """

    def guarded(page: Page) -> Page:
        async def checked(request: web.Request) -> web.StreamResponse:
            shown = names(auth_context(request.get_extra_info("peercert")))
            headers = request.headers.getall("Authorization", [])
            refusal = entrance.refusal(request.path, headers, shown)
            if refusal is None:
                return await page(request)
            counts.kept_out(request.path, refusal.why)
            log.warning("%s: refused to %s: %s", request.path, request.remote, refusal.text)
            return web.json_response(
                {"error": refusal.text},
                status=STATUSES[refusal.why],
                headers={"WWW-Authenticate": "Bearer"} if refusal.why == "unknown" else {},
            )

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
        silences = {
            one.name: {
                "silent_seconds": round(one.silence, 1),
                "problem": one.trouble.problem if one.trouble else "",
            }
            for one in sources
        }
        is_ready = readiness.ready()
        return web.json_response(
            {"ready": is_ready, "conditions": conditions, "sources": silences},
            status=200 if is_ready else 503,
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


ASSETS = files(__package__).joinpath("assets")
"""The live page's own files, which load nothing from elsewhere."""
KINDS = {"html": "text/html", "css": "text/css", "svg": "image/svg+xml", "js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def file_pages() -> Mapping[str, Page]:
    """Return the pages of the live page's files by path; `index.html` is `/`, others are in `/live/`."""

    def page(asset: Traversable) -> Page:
        content, kind = asset.read_bytes(), KINDS[asset.name.rpartition(".")[2]]

        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)

        return answer

    return {
        "/" if one.name == "index.html" else f"/live/{one.name}": page(one)
        for one in ASSETS.iterdir()
    }
