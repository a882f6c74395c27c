"""Presents an HTTP request to `router.calls.intake` as a gRPC call with one message, the body.

`answering` makes pages of such calls, whose errors are JSON.
"""

from collections.abc import Sequence
from typing import NoReturn

import grpc
import grpc.aio
import msgspec
from aiohttp import web

from warmpath.router.calls.intake import RefusedError
from warmpath.router.pages.listener import Page
from warmpath.router.tracing.tracer import NO_TRACER, Tracer
from warmpath.router.transport.call import Refusal

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


class HttpCall:
    """The part of gRPC's context of a call that the intake uses."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._is_read = False

    @property
    def next_bytes(self) -> int | None:
        """The bytes of the body; None if they are not known before it is read."""
        packed = "Content-Encoding" in self._request.headers
        return None if packed else self._request.content_length

    def peer(self) -> str:
        """Return the caller. Each request has a connection of its own, so ports are left out."""
        return f"http {self._request.remote}"

    def time_remaining(self) -> None:
        """Return None: an HTTP request has no deadline."""

    async def read(self) -> object:
        """Return the body; gRPC's end after it, or if the caller has gone.

        Raises HTTPRequestEntityTooLarge, and RefusedError if the body is not in its encoding.
        """
        if self._is_read:
            return grpc.aio.EOF
        self._is_read = True
        try:
            return await self._request.read()
        except ConnectionError:
            return grpc.aio.EOF
        except web.RequestPayloadError as error:
            text = "body: is not in its Content-Encoding or Transfer-Encoding"
            raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, text)) from error

    async def abort(
        self, code: grpc.StatusCode, text: str, metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> NoReturn:
        """End the call with a status, by the exception that the page answers."""
        raise RefusedError(Refusal(code, text, tuple(metadata)))


def answering(
    answer: Page, most_bytes: int, tracer: Tracer = NO_TRACER, *, limit: str = LIMIT
) -> Page:
    """Return a page that answers a call's errors with their statuses; a body may have `most_bytes`.

    `limit` says where that number comes from. `tracer` makes a span of each call.
    """
    too_large = f"the body has more than {most_bytes} bytes ({limit})"

    async def page(request: web.Request) -> web.StreamResponse:
        if (request.content_length or 0) > most_bytes:
            return _error(413, too_large)
        try:
            return await answer(request.clone(client_max_size=most_bytes))
        except RefusedError as error:
            return _error(STATUSES.get(error.refusal.code, 500), error.refusal.text)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, too_large)

    async def traced(request: web.Request) -> web.StreamResponse:
        carrier = ((name.lower(), value) for name, value in request.headers.items())
        attributes = {
            "http.request.method": request.method,
            "http.route": request.path,
            "url.path": request.path,
            "url.scheme": request.scheme,
        }
        with tracer.call(f"{request.method} {request.path}", carrier, attributes) as span:
            answered = await page(request)
            span.answers(answered.status)
            return answered

    return traced if tracer.is_on else page


def _error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode({"error": text}), content_type="application/json"
    )
