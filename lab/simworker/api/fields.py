"""A request's JSON body and query, read field by field: each error names the field and its limit."""

from typing import Any

import msgspec
from aiohttp import web

from warmpath.lab.simworker.api.errors import ApiError, bad
from warmpath.lab.simworker.server.worker import Worker

_decode = msgspec.json.Decoder().decode


class Fields:
    """A JSON object. A field that is null counts as missing."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    def get(self, name: str) -> Any:
        """Return a field's value, unchecked."""
        return self.body.get(name)

    def text(self, name: str, default: str = "") -> str:
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise bad(name, "is not a string")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise bad(name, "is neither true nor false")
        return value

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, `default` if it is missing. Raises ApiError."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise bad(name, "is not a whole number")
        if value < low:
            raise bad(name, f"at least {low}")
        if value > high:
            raise bad(name, f"at most {high}")
        return value

    def object(self, name: str) -> "Fields":
        """Return an object, an empty one if it is missing. Raises ApiError for another value."""
        value = self.body.get(name)
        if value is None:
            return Fields({})
        if not isinstance(value, dict):
            raise bad(name, "is not an object")
        return Fields(value)


class Endpoints:
    """Some paths of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def routes(self) -> list[web.RouteDef]:
        """Return each path with its handler."""
        raise NotImplementedError


async def read_body(request: web.Request) -> Fields:
    """Return a request's body. Raises ApiError if it is not a JSON object."""
    raw = await request.read()
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError("the body is not a JSON object")
    return Fields(body)


def query_flag(request: web.Request, name: str) -> bool:
    """Return a flag of the query, false if it is missing. Raises ApiError for another value."""
    value = request.query.get(name, "false").lower()
    if value not in {"true", "false", "1", "0"}:
        raise bad(name, "is neither true nor false")
    return value in {"true", "1"}
