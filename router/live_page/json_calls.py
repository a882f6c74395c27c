"""The router's calls that change nothing, over HTTP: a request in, its answer out, both as JSON.

The JSON is protobuf's own mapping of the messages in proto/warmpath/v1/router.proto. Calls wait, are
refused, drained and counted with those of gRPC.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from aiohttp import web
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from router.api.intake import RefusedError
from router.api.service import SERVICE, RouterService
from router.http import Page
from router.http_call import HttpCall, answering
from router.tracing.tracer import NO_TRACER, Tracer
from router.transport.server import Refusal

PATH = "/api/v1/"
METHODS: Sequence[str] = ("Score", "Explain", "ListPods", "ListDecisions", "Diagnose")
MOST_WHY = 300
"""The most characters of a JSON error that its sender is told."""


class JsonCall(HttpCall):
    """An HTTP request as a gRPC call whose message is made of the JSON in the body."""

    def __init__(self, request: web.Request, message: type[Any]) -> None:
        super().__init__(request)
        self._message = message

    @property
    def next_bytes(self) -> None:
        """None: the message's length is not the body's."""

    async def read(self) -> object:
        """Return the message's bytes. Raises RefusedError, and as HttpCall.read."""
        body = await super().read()
        if not isinstance(body, bytes):
            return body
        # A long prompt takes longer than other calls should wait.
        return await asyncio.to_thread(_message_bytes, body, self._message)


def json_calls(
    service: RouterService, most_bytes: int, tracer: Tracer = NO_TRACER
) -> Mapping[str, Page]:
    """Return the pages by path. A body may have `most_bytes`."""
    handlers = service.methods()
    return {
        PATH + name: _page(handlers[name], SERVICE.methods_by_name[name], most_bytes, tracer)
        for name in METHODS
    }


def _page(handler: Any, method: MethodDescriptor, most_bytes: int, tracer: Tracer) -> Page:
    asked, answered = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

    async def answer(request: web.Request) -> web.Response:
        reply = await handler.stream_unary(None, JsonCall(request, asked))
        text = await asyncio.to_thread(_json, answered.FromString(reply))
        return web.Response(text=text, content_type="application/json")

    return answering(answer, most_bytes, tracer)


def _message_bytes(body: bytes, message: type[Any]) -> bytes:
    try:
        parsed = json_format.Parse(body or b"{}", message())
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        text = f"body: is not the method's request as JSON: {str(error)[:MOST_WHY]}"
        raise RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, text)) from None
    return bytes(parsed.SerializeToString())


def _json(message: Any) -> str:
    return json_format.MessageToJson(
        message,
        indent=None,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
