"""The router's HTTP listener: /healthz, /readyz, the live page's files, and pages of other rooms.

Pages that are calls are answered as calls are: in turn, with room for the body, errors as JSON.
/metrics is read in turns with other work, and written in another thread: those of two thousand pods have
tens of thousands of samples, which take the thread that answers calls a tenth of a second to read.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

import grpc
import msgspec
from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.process.tls import auth_context, names
from warmpath.router.access.entrance import Entrance
from warmpath.router.calls.intake import Intake
from warmpath.router.calls.service import Answer
from warmpath.router.metrics.calls import Metrics
from warmpath.router.pods.discover import SourceState
from warmpath.router.readiness import Readiness
from warmpath.router.tracing.steps import NO_TRACER, Tracer

log = logging.getLogger(__name__)

STATUSES = {"unknown": 401, "role": 403}

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages(NamedTuple):
    """The pages that other parts of the router serve here, by path."""

    posts: Mapping[str, Page] = {}
    """The pages that take POST. Each needs a role (`router.access.entrance`)."""
    gets: Mapping[str, Page] = {}
    """The pages that take GET and need a role."""
    files: Mapping[str, Page] = {}
    """The pages that take GET and are open to anybody."""


def http_app(
    readiness: Readiness,
    entrance: Entrance,
    counts: Metrics,
    *,
    pages: Pages,
    sources: Sequence[SourceState] = (),
) -> web.Application:
    """Return the application that serves all paths.

    `entrance` says who may ask for `pages`, except `files`; `counts` counts the refused requests.
    /readyz says how long each of `sources` of pods has been silent.
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


CALL_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429, grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}  # fmt: skip
"""HTTP's statuses by gRPC's, which `RouterService` gives to errors."""
LIMIT = "limits.max-prompt-bytes"
"""The configuration's key of the longest body."""


def call_page(
    intake: Intake,
    method: str,
    answer: Answer,
    most_bytes: int,
    tracer: Tracer = NO_TRACER,
    *,
    limit: str = LIMIT,
    made: Callable[[bytes], Awaitable[bytes]] | None = None,
    shown: Callable[[bytes], Awaitable[web.Response]] | None = None,
) -> Page:
    """Return a page that answers a body by a call; errors become HTTP's statuses.

    `made` turns a body of at most `most_bytes` into the call's message, `shown` the call's answer into
    the response; without them both stay as they are, JSON. `limit` names the setting of `most_bytes` for
    the error's text. `tracer` makes a span for each call.
    """
    too_large = f"the body has more than {most_bytes} bytes ({limit})"

    async def page(request: web.Request) -> web.Response:
        if (request.content_length or 0) > most_bytes:
            return _error(413, too_large)
        bounded = request.clone(client_max_size=most_bytes)
        try:
            told = await answered(bounded)
            return _json(told) if shown is None else await shown(told)
        except RefusedError as error:
            return _error(CALL_STATUSES.get(error.refusal.code, 500), error.refusal.text)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, too_large)

    async def answered(request: web.Request) -> bytes:
        async def body() -> bytes | None:
            try:
                read = await request.read()
            except ConnectionError:
                return None
            except web.RequestPayloadError as error:
                text = "body: is not in its Content-Encoding or Transfer-Encoding"
                raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, text)) from error
            return read if made is None else await made(read)

        # Each request has a connection of its own, so ports are left out.
        client = f"http {request.remote}"
        size = None if "Content-Encoding" in request.headers else request.content_length
        return await intake.answered(
            method, client, body, lambda: size, lambda message: answer(message, math.inf)
        )

    async def traced(request: web.Request) -> web.StreamResponse:
        carrier = ((name.lower(), value) for name, value in request.headers.items())
        attributes = {
            "http.request.method": request.method,
            "http.route": request.path,
            "url.path": request.path,
            "url.scheme": request.scheme,
        }
        with tracer.call(f"{request.method} {request.path}", carrier, attributes) as span:
            told = await page(request)
            span.answered(told.status)
            return told

    return traced if tracer.is_on else page


def _error(status: int, text: str) -> web.Response:
    return _json(msgspec.json.encode({"error": text}), status)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


REST = 3.0
"""The rest before the next page is made, as a multiple of the time that the last one took: however many
ask, most of the time is for calls."""


class MetricsPage:
    """Makes the page of the metrics that `steps` yields; at each None other work may be done."""

    def __init__(
        self, steps: Callable[[], Iterator[Metric | None]], *, clock: Callable[[], float]
    ) -> None:
        self._steps = steps
        self._clock = clock
        self._made: dict[str, tuple[float, bytes]] = {}
        """The last page in each form, by content type, with the time at which its reading began."""
        self._making = asyncio.Lock()
        self._rests_until = 0.0

    async def page(self, request: web.Request) -> web.Response:
        """Answer a scraper. All that ask while a page is made get the next one, which is made once."""
        asked = self._clock()
        # OpenMetrics, which alone has exemplars, only for those who ask for it.
        encoder, kind = _encoder(request.headers.get("Accept", ""))
        async with self._making:
            begun, body = self._made.get(kind, (-math.inf, b""))
            if begun < asked:
                await asyncio.sleep(self._rests_until - self._clock())
                begun = self._clock()
                read = await self._read()
                body = await asyncio.to_thread(encoder, read)
                self._made[kind] = begun, body
                now = self._clock()
                self._rests_until = now + REST * (now - begun)
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _read(self) -> "_Read":
        read = _Read()
        for metric in self._steps():
            if metric is None:
                await asyncio.sleep(0)
            else:
                read.append(metric)
        return read


class _Read(Collector, list[Metric]):
    """Metrics that were read."""

    def collect(self) -> Iterable[Metric]:
        return self


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # The library compares versions that are no numbers.
        return choose_encoder("")
