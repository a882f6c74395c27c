"""A line of a gateway's access log: a request, and where it went.

docs/guides/simulate-and-verify.md#logs-of-nginx-and-envoy has the settings of nginx and Envoy.
Errors in a line are described without quoting prompts.
"""

import json
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from warmpath.process.bytes import UNREADABLE
from warmpath.router.inference_api.response import LEAST_ERROR

TELLABLE = frozenset(
    ("timestamp", "input_tokens", "output_tokens", "input_length", "output_length", "block_size")
)
"""Fields whose values may be shown, since they are not part of a prompt."""
MOST_SHOWN = 40
"""The most characters of a value that is shown."""

NO_OBJECT = "is no JSON object"

PLACE = re.compile(r"(?P<why>.*) - at `\$\.(?P<path>(?P<field>\w+).*)`")


LineT = TypeVar("LineT")


def decoded(decoder: msgspec.json.Decoder[LineT], line: bytes) -> LineT:
    """Return a line's content. Raises ValueError with the decoder's error in words."""
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        raise ValueError(described(line, error)) from error


def described(line: bytes, error: Exception) -> str:
    """Return a decoder's error about a line: the field, and its value if that may be shown."""
    found = PLACE.fullmatch(str(error))
    if found is None:
        is_object = str(error).startswith("Object missing") or isinstance(error, RecursionError)
        return str(error) if is_object else f"{NO_OBJECT}: {error}"
    why = found["why"][:1].lower() + found["why"][1:]
    value = _value(line, found["field"]) if found["field"] in TELLABLE else ""
    return f"{found['path']}{value}: {why}"


def _value(line: bytes, field: str) -> str:
    try:
        value = msgspec.json.decode(line)[field]
    except UNREADABLE:
        # The line has further errors after the field.
        return ""
    return "" if isinstance(value, dict | list) else f" is {shown(value)}"


def shown(value: object) -> str:
    """Return a value as JSON, shortened to MOST_SHOWN characters."""
    text = json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


MOST_SECONDS = 7.3e9
"""The latest accepted timestamp, in the year 2201: milliseconds since 1970 are beyond it."""


class Body(msgspec.Struct):
    """An inference request's body; further fields are ignored."""

    model: str = ""
    messages: list[dict[str, Any]] | None = None
    prompt: str | list[int] | None = None
    stream: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the prompt and its model as the fields of a log's line."""
        prompt = {"token_ids" if isinstance(self.prompt, list) else "prompt": self.prompt}
        return {"model": self.model, "messages": self.messages, **prompt}


def read_body(text: str) -> Body:
    """Return a logged body. Raises ValueError that does not quote it."""
    try:
        return msgspec.json.decode(text, type=Body)
    except msgspec.ValidationError as error:
        raise ValueError(f"request_body: {error}") from error
    except UNREADABLE as error:
        raise ValueError("request_body is not the JSON of a whole body") from error


class GatewayLine(msgspec.Struct):
    """The fields by which any log of a gateway tells of a request."""

    timestamp: float | str
    """The time of the line, in Unix seconds or in ISO 8601."""
    request_body: str | None = None
    """An inference request as a gateway logs it, in place of its prompt and model."""
    token_ids: list[Annotated[int, Meta(ge=0, lt=2**32)]] | None = None
    text: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    model: str | None = None
    request_time: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds from the request's start to `timestamp`."""

    @property
    def seconds(self) -> float:
        """The timestamp in seconds. Raises ValueError."""
        stamp = self.timestamp
        if isinstance(stamp, str):
            try:
                when = datetime.fromisoformat(stamp)
            except ValueError as error:
                problem = f"timestamp is {shown(stamp)}, neither seconds nor ISO 8601"
                raise ValueError(problem) from error
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        else:
            seconds = stamp
        if not 0 <= seconds <= MOST_SECONDS:
            problem = f"not 0 to {MOST_SECONDS:.0f} seconds (the years 1970 to 2201)"
            raise ValueError(f"timestamp is {shown(stamp)}, {problem}")
        return seconds


class RoutedLine(GatewayLine):
    """A line that also tells where the request went; further fields are ignored."""

    upstream: str | None = None
    """The pod's address; of several attempts, as nginx tells them, the last one."""
    path: str | None = None
    status: int | None = None
    """The answer's HTTP status."""
    cached_tokens: Annotated[int, Meta(ge=0, lt=2**32)] | None = None
    """The tokens that the engine found cached."""


class Passed(StrEnum):
    """Why a line that can be read is not compared."""

    NO_PROMPT = "no_prompt"
    """The request has no body and no prompt, such as one for the list of models."""
    UNSENT = "unsent"
    """The request went to no pod."""
    FAILED = "failed"
    """The answer is an error."""


class Sent(NamedTuple):
    """A request, and where it went."""

    at: float
    """When it began, in seconds since the Unix epoch."""
    upstream: str
    path: str
    body: bytes
    cached_tokens: int | None


PROMPTS = ("request_body", "token_ids", "text", "prompt", "messages")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_DECODER = msgspec.json.Decoder(RoutedLine)


def read_sent(raw: bytes) -> Sent | Passed:
    """Return the request of a line, or why it does not count. Raises ValueError that names the field."""
    line = decoded(_DECODER, raw)
    given = [name for name in PROMPTS if getattr(line, name)]
    if not given:
        return Passed.NO_PROMPT
    if len(given) > 1:
        raise ValueError(f"{', '.join(given)}: only one of these may be given")
    if line.upstream is None:
        raise ValueError("upstream is missing: the address of the pod that answered")
    upstream = line.upstream.replace(" : ", ", ").rpartition(", ")[2].strip()
    if upstream in ("", "-"):
        return Passed.UNSENT
    if line.status is not None and line.status >= LEAST_ERROR:
        return Passed.FAILED
    path, body = _request(line)
    return Sent(line.seconds - line.request_time, upstream, path, body, line.cached_tokens)


def _request(line: RoutedLine) -> tuple[str, bytes]:
    """Return the path and the body of a request. Raises ValueError."""
    if line.request_body:
        if line.path:
            return line.path, line.request_body.encode()
        is_chat = read_body(line.request_body).messages is not None
        return CHAT if is_chat else COMPLETIONS, line.request_body.encode()
    content: dict[str, Any] = {"model": line.model or ""}
    if line.messages:
        content["messages"] = line.messages
    else:
        content["prompt"] = line.token_ids or line.text or line.prompt
    path = line.path or (CHAT if line.messages else COMPLETIONS)
    return path, msgspec.json.encode(content)
