"""The pages that Dynamo's callers POST to, on the router's HTTP listener."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from warmpath.router.calls.service import RouterService
from warmpath.router.pages.dynamo import Overlaps
from warmpath.router.pages.http_call import HttpCall, answering
from warmpath.router.pages.listener import Page
from warmpath.router.tracing.tracer import NO_TRACER, Tracer


def pages(
    service: RouterService, overlaps: Overlaps, most_bytes: int, tracer: Tracer = NO_TRACER
) -> Mapping[str, Page]:
    """Return the pages by path. Calls wait, are refused, drained and counted with those of gRPC.

    A body may have `most_bytes`.
    """

    def page(handler: Any) -> Page:
        async def answer(request: web.Request) -> web.Response:
            body = await handler.stream_unary(None, HttpCall(request))
            return web.Response(body=body, content_type="application/json")

        return answering(answer, most_bytes, tracer)

    return {
        f"/{name}": page(service.raw(name, answer))
        for name, answer in (
            ("query", overlaps.query),
            ("overlap_scores", overlaps.overlap_scores),
        )
    }
