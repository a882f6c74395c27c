"""The router's calls that change nothing, over HTTP: a request in, its answer out, both as JSON.

The JSON is protobuf's own mapping of the messages in proto/warmpath/v1/router.proto. Calls wait, are
refused, drained and counted with those of gRPC.

Protobuf's library makes objects of all values first, and looks through each text in one step that no
other thread can interrupt. So the values of a body are bounded, and the prompt's text, the only one that
may be long, is set aside until the message is made.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from aiohttp import web
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.router.calls.service import SERVICE, RouterService
from warmpath.router.pages.listener import LIMIT, Page, call_page
from warmpath.router.prompt.bodies.fields import MOST_VALUES as BODY_VALUES
from warmpath.router.prompt.bodies.fields import FieldError, check_values
from warmpath.router.tracing.steps import NO_TRACER, Tracer

PATH = "/api/v1/"
METHODS: Sequence[str] = ("Score", "Explain", "ListPods", "ListDecisions", "Diagnose")
MOST_VALUES = 4 * BODY_VALUES
"""Most values of a request, nested ones included: a quarter of a second's work."""
TOO_MANY = "; send a longer prompt as token_ids_packed, which is one value, or over gRPC"
MOST_QUESTION_BYTES = 64 << 10
"""Longest body of a method that takes no prompt, only a few names."""
MOST_WHY = 300
"""The most characters of a JSON error that its sender is told."""

MOST_TEXT = 64 << 10
"""Most characters of a text that is not the prompt's. No name of a request may have as many."""
TEXT = "text"
"""The field of the prompt's text; no other message of a request has a field of that name."""
LONG = frozenset({
    "chat_body", "chatBody", "completions_body", "completionsBody", "token_ids_packed", "tokenIdsPacked",
})  # fmt: skip
"""The fields with the prompt's other forms, in base64."""

FAULTS = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""The errors of the libraries for bytes that are no request, beside protobuf's own error."""


def json_calls(
    service: RouterService, most_bytes: int, tracer: Tracer = NO_TRACER
) -> Mapping[str, Page]:
    """Return the pages by path. A body may have at most `most_bytes`."""
    answers = service.answers()
    # One after the other; a step that has not begun when its caller is cancelled never begins.
    thread = ThreadPoolExecutor(1, "json")
    in_thread = partial(asyncio.get_running_loop().run_in_executor, thread)

    def page(method: MethodDescriptor) -> Page:
        asked, told = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

        async def message(body: bytes) -> bytes:
            try:
                await check_values(body, MOST_VALUES)
            except FieldError as error:
                raise _refused(f"{error.problem}{TOO_MANY}") from None
            return await in_thread(message_of, body, asked)

        async def shown(reply: bytes) -> web.Response:
            text = await in_thread(_json, reply, told)
            return web.Response(text=text, content_type="application/json")

        is_long = "prompt" in method.input_type.fields_by_name
        return call_page(
            service.intake, method.name, answers[method.name],
            most_bytes if is_long else MOST_QUESTION_BYTES, tracer,
            limit=LIMIT if is_long else f"{method.name} takes no more", made=message, shown=shown,
        )  # fmt: skip

    return {PATH + name: page(SERVICE.methods_by_name[name]) for name in METHODS}


def _refused(problem: str) -> RefusedError:
    return RefusedError(Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"body: {problem}"))


def _json(reply: bytes, kind: type[Any]) -> str:
    return json_format.MessageToJson(
        kind.FromString(reply),
        indent=None,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def message_of(body: bytes, kind: type[Any]) -> bytes:
    """Return the message of `kind` that a body holds, serialised. Raises RefusedError if it has none."""
    text: str | None = None

    def without_text(members: list[tuple[str, Any]]) -> dict[str, Any]:
        """Return an object of the body without the prompt's text. Raises ValueError."""
        nonlocal text
        made: dict[str, Any] = {}
        for name, value in members:
            if name in made:
                raise ValueError(f"duplicate key {name[:MOST_TEXT]}")
            made[name] = value
            if name in LONG or (name == TEXT and isinstance(value, str)):
                continue
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, str) and len(one) > MOST_TEXT:
                    raise ValueError(f"{name}: has more than {MOST_TEXT} characters")
        if isinstance(made.get(TEXT), str):
            # An empty one stays, so that an object without such a field is refused.
            text, made[TEXT] = made[TEXT], ""
        return made

    try:
        value = json.loads(body.decode() or "{}", object_pairs_hook=without_text)
        message = json_format.ParseDict(value, kind())
        if text is not None:
            message.prompt.text = text
        return bytes(message.SerializeToString())
    except (*FAULTS, json_format.ParseError) as error:
        raise _refused(f"is not the method's request as JSON: {str(error)[:MOST_WHY]}") from None
