"""Refusals in OpenAI's form of errors, and in Anthropic's.

Source: `vllm/entrypoints/serve/exception_handling` of 0.32.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from warmpath.lab.simworker.events.faulty_outlet import FaultError
from warmpath.lab.simworker.server.adapters import AdapterError
from warmpath.lab.simworker.server.text import TextError

KINDS = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """A request is answered with an error; `field` is the field at fault, None if there is none."""

    def __init__(self, message: str, *, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


def bad(field: str, message: str) -> ApiError:
    """Return the refusal of a field's value."""
    return ApiError(f"{field}: {message}", field=field)


def json_response(value: Any, status: int = 200) -> web.Response:
    """Return a JSON answer."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


def error_response(message: str, status: int, field: str | None = None) -> web.Response:
    """Return an error in OpenAI's form."""
    kind = KINDS.get(status, HTTPStatus(status).phrase.replace(" ", ""))
    fault = {"message": message, "type": kind, "param": field, "code": status}
    return json_response({"error": fault}, status)


OPEN = "/health", "/metrics"


def guard(key: str) -> Any:
    """Return a middleware that refuses requests without a key, as SGLang does; vLLM guards /v1 alone."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN and request.headers.get("Authorization") != f"Bearer {key}":
            return json_response({"error": "Unauthorized"}, 401)
        return await handler(request)

    return check


@web.middleware
async def refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a handler's exceptions with errors, in Anthropic's form for /v1/messages."""
    try:
        return await handler(request)
    except ApiError as error:
        refused = str(error), error.status, error.field
    except (TextError, FaultError) as error:
        refused = str(error), 400, None
    except AdapterError as error:
        refused = str(error), 404 if error.unknown else 400, "lora_name"
    except web.HTTPException as error:
        # Unknown paths, wrong methods, bodies that are too large.
        refused = error.text or error.reason, error.status, None
    if request.path == "/v1/messages":
        return _anthropic_error(*refused)
    return error_response(*refused)


def _anthropic_error(message: str, status: int, _: object) -> web.Response:
    kind = KINDS.get(status, HTTPStatus(status).phrase.replace(" ", ""))
    fault = {"type": kind, "message": message}
    return json_response({"type": "error", "error": fault}, status)
