"""Short builders of the events that a gateway sends of an exchange."""

import json
from typing import Any

from warmpath.router.config.schema import PickerHeadersTable
from warmpath.router.endpoint_picker.events import (
    Endpoint,
    Event,
    Modes,
    NoPick,
    Outcome,
    Picked,
    WantPick,
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


def exchange(most_bytes: int = 1000, *, is_shadow: bool = False) -> Exchange:
    return Exchange(NAMES, most_bytes, is_shadow=is_shadow)


def post(
    *headers: tuple[str, str],
    path: str = "/v1/completions",
    ends: bool = False,
    modes: Modes | None = None,
    **fields: Any,
) -> Event:
    """Return the headers of a request with a JSON body."""
    whole = ((":method", "POST"), (":path", path), ("content-type", "application/json"), *headers)
    return Event("request", "headers", ends, whole, modes=modes or Modes(), **fields)


def body(data: bytes, *, ends: bool = True, **fields: Any) -> Event:
    return Event("request", "body", ends, data=data, **fields)


def answer(status: int = 200, kind: str = "application/json", **fields: Any) -> Event:
    headers = ((":status", str(status)), ("content-type", kind))
    return Event("response", "headers", headers=headers, **fields)


def piece(data: bytes, ends: bool = False) -> Event:
    return Event("response", "body", ends, data=data)


REQUEST_TRAILERS = Event("request", "trailers", ends=True)
RESPONSE_TRAILERS = Event("response", "trailers", ends=True)


def refusal(status: int, reason: str, text: str, retry_after: float = 0.0) -> NoPick:
    return NoPick(Outcome.NO_POD, status, reason, text, retry_after)


def event(value: object) -> bytes:
    """Return one event of a stream of server-sent events."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def token(text: str = "a") -> Event:
    return piece(event({"choices": [{"text": text}]}))


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
