"""The pages that Dynamo's callers POST to, on the router's HTTP listener."""

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from router.api.intake import RefusedError
from router.api.service import RouterService
from router.dynamo.overlaps import Overlaps
from router.http import Page
from router.http_call import STATUSES, TOO_LARGE, HttpCall


def pages(service: RouterService, overlaps: Overlaps, most_bytes: int) -> Mapping[str, Page]:
    """Return the pages by path. Calls wait, are refused, drained and counted with those of gRPC.

    A body may have `most_bytes`.
    """

    def page(handler: Any) -> Page:
        async def answer(request: web.Request) -> web.Response:
            if (request.content_length or 0) > most_bytes:
                return _error(413, TOO_LARGE % most_bytes)
            try:
                body = await handler.stream_unary(None, HttpCall(request))
            except RefusedError as error:
                return _error(STATUSES.get(error.refusal.code, 500), error.refusal.text)
            except web.HTTPRequestEntityTooLarge:
                return _error(413, TOO_LARGE % most_bytes)
            return web.Response(body=body, content_type="application/json")

        return answer

    return {
        f"/{name}": page(service.raw(name, answer))
        for name, answer in (
            ("query", overlaps.query),
            ("overlap_scores", overlaps.overlap_scores),
        )
    }


def _error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode({"error": text}), content_type="application/json"
    )
