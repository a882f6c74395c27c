"""Answers HTTP requests as calls are answered: in turn, with room for the body, errors as JSON."""

import math
from collections.abc import Awaitable, Callable

import grpc
import msgspec
from aiohttp import web

from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.router.calls.intake import Intake
from warmpath.router.calls.service import Answer
from warmpath.router.pages.listener import Page
from warmpath.router.tracing.tracer import NO_TRACER, Tracer

STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
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

    `made` makes the call's message of a body of at most `most_bytes`, and `shown` the response of the
    call's answer, where these are no JSON as they are. `limit` names the setting of that number, for the
    error's text. `tracer` makes a span for each call.
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
            return _error(STATUSES.get(error.refusal.code, 500), error.refusal.text)
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
