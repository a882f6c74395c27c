"""The router's calls that change nothing, over HTTP: a request in, its answer out, both as JSON.

The JSON is protobuf's own mapping of the messages in proto/warmpath/v1/router.proto. Calls wait, are
refused, drained and counted with those of gRPC.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import grpc
from aiohttp import web
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.router.calls.service import SERVICE, RouterService
from warmpath.router.pages.http_call import answered, answering
from warmpath.router.pages.json_message import NoRequestError, message_of
from warmpath.router.pages.listener import Page
from warmpath.router.prompt.bodies.fields import MOST_VALUES as BODY_VALUES
from warmpath.router.prompt.bodies.fields import check_values
from warmpath.router.prompt.bodies.json_strings import FieldLimitError
from warmpath.router.tracing.tracer import NO_TRACER, Tracer

PATH = "/api/v1/"
METHODS: Sequence[str] = ("Score", "Explain", "ListPods", "ListDecisions", "Diagnose")
MOST_VALUES = 4 * BODY_VALUES
"""Most values of a request, nested ones included: a quarter of a second's work."""
TOO_MANY = "; send a longer prompt as token_ids_packed, which is one value, or over gRPC"
MOST_QUESTION_BYTES = 64 << 10
"""Longest body of a method that takes no prompt, only a few names."""
MOST_WHY = 300
"""The most characters of a JSON error that its sender is told."""

T = TypeVar("T")


class JsonThread:
    """Makes messages of JSON, and JSON of messages, in a thread of its own, one after the other.

    A step that has not begun when its caller is cancelled never begins.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "json")

    async def run(self, make: Callable[[], T]) -> T:
        """Return what `make` returns. Raises its errors."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, make)


def json_calls(
    service: RouterService, most_bytes: int, tracer: Tracer = NO_TRACER
) -> Mapping[str, Page]:
    """Return the pages by path. A body may have `most_bytes`."""
    answers, thread = service.answers(), JsonThread()

    def page(method: MethodDescriptor) -> Page:
        asked, told = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

        async def message(body: bytes) -> bytes:
            try:
                await check_values(body, MOST_VALUES)
            except FieldLimitError as error:
                raise _refused(f"{error.problem}{TOO_MANY}") from None
            return await thread.run(partial(_message_bytes, body, asked))

        async def respond(request: web.Request) -> web.Response:
            name = method.name
            reply = await answered(request, service.intake, name, answers[name], message)
            text = await thread.run(partial(_json, reply, told))
            return web.Response(text=text, content_type="application/json")

        if "prompt" in method.input_type.fields_by_name:
            return answering(respond, most_bytes, tracer)
        return answering(respond, MOST_QUESTION_BYTES, tracer, limit=f"{method.name} takes no more")

    return {PATH + name: page(SERVICE.methods_by_name[name]) for name in METHODS}


def _message_bytes(body: bytes, message: type[Any]) -> bytes:
    try:
        return bytes(message_of(body, message).SerializeToString())
    except NoRequestError as error:
        raise _refused(f"is not the method's request as JSON: {str(error)[:MOST_WHY]}") from None


def _refused(problem: str) -> RefusedError:
    return RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"body: {problem}"))


def _json(reply: bytes, message: type[Any]) -> str:
    return json_format.MessageToJson(
        message.FromString(reply),
        indent=None,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
