"""Short builders of the events that a gateway sends of an exchange."""

import json
from typing import Any

from warmpath.router.config.schema import PickerHeadersTable
from warmpath.router.endpoint_picker.actions import Endpoint, Picked, WantPick
from warmpath.router.endpoint_picker.events import (
    Modes,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
)
from warmpath.router.endpoint_picker.exchange import Exchange
from warmpath.router.endpoint_picker.protocol import BodyMode, HeaderNames, names_of

NAMES: HeaderNames = names_of(PickerHeadersTable())
ONE, TWO = "10.0.0.1:80", "10.0.0.2:80"
PICKED = Picked("b-1", {ONE: Endpoint("pod-1", 0, 48, 0.25), TWO: Endpoint("pod-2", 0, 16, 0.125)})
BUFFERED = Modes(BodyMode.BUFFERED, BodyMode.STREAMED)
USAGE = {
    "prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 48}
}  # fmt: skip


def exchange(most_bytes: int = 1000) -> Exchange:
    return Exchange(NAMES, most_bytes)


def post(
    *headers: tuple[str, str],
    path: str = "/v1/completions",
    ends: bool = False,
    modes: Modes | None = None,
    **fields: Any,
) -> RequestHeaders:
    """Return the headers of a request with a JSON body."""
    whole = ((":method", "POST"), (":path", path), ("content-type", "application/json"), *headers)
    return RequestHeaders(whole, ends, modes or Modes(), **fields)


def body(data: bytes, *, ends: bool = True, **fields: Any) -> RequestBody:
    return RequestBody(data, ends, **fields)


def answer(status: int = 200, kind: str = "application/json", **fields: Any) -> ResponseHeaders:
    """Return the headers of a response."""
    return ResponseHeaders(((":status", str(status)), ("content-type", kind)), **fields)


def event(value: object) -> bytes:
    """Return one event of a stream of server-sent events."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def token(text: str = "a") -> ResponseBody:
    return ResponseBody(event({"choices": [{"text": text}]}))


def picking(one: Exchange, *events: Any) -> WantPick:
    """Send events, the last of which causes a pick; return the wanted pick."""
    for other in events[:-1]:
        assert not any(isinstance(action, WantPick) for action in one.receive(other))
    *_, want = one.receive(events[-1])
    assert isinstance(want, WantPick)
    return want


def pick(one: Exchange, *events: Any) -> list[Any]:
    """Send events, the last of which causes a pick; make it, and return the replies."""
    picking(one, *events)
    replies = one.request.picked(PICKED)
    one.response.booked(PICKED)
    return list(replies)
