"""The actions that an exchange asks of its stream: picks, replies to the gateway, reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from warmpath.proto.report_event import ReportEvent
from warmpath.router.endpoint_picker.protocol import BodyMode
from warmpath.router.inference_api.model_name import Renaming

Side = Literal["request", "response"]

Settings = tuple[tuple[str, str], ...]
"""Names and values of headers that replace others of the same name."""


class WantPick(msgspec.Struct, frozen=True):
    """The exchange needs a pick; its caller then calls `picked`, `refused` or `let_through`."""

    path: str
    body: bytes
    """The whole body, or its beginning."""
    content_type: str
    content_encoding: str
    model: str
    """The model's name that a header asks to put into the body for the engine; empty: the body's own."""
    session: str
    priority: str
    """The class that a header names; empty: none."""
    tenant: str
    """The tenant that a header names; empty: none."""
    subset: frozenset[str] | None
    headers: Mapping[str, str]
    """All of the request's headers, for the names of its trace."""
    is_shadow: bool
    """Whether the gateway chooses the endpoint itself, and the picker only watches the exchange."""


class Endpoint(NamedTuple):
    """A rank of a pod that may serve the request."""

    pod: str
    rank: int
    cached_tokens: int | None
    """Tokens of the prompt that it is predicted to hold; None: the prompt is not known."""
    saved_seconds: float
    """Seconds of prefill that these tokens are predicted to save."""


@dataclass(frozen=True, slots=True)
class Picked:
    """The pick for an exchange."""

    booking_id: str
    endpoints: Mapping[str, Endpoint]
    """By address, best first, in the order to try them; at least one."""
    engine_rank: int | None = None
    """The engine's own number of the picked rank; None if its pod has only one rank."""
    prefill: str = ""
    """The address of the pod that is to prefill; empty: the one that serves the request. The booking is
    on it, and so are the cached tokens of the endpoints."""
    body: bytes | None = None
    """The body with another model's name; None if it stays."""
    renaming: Renaming | None = None
    """The names of the model, if `body` has another than the client gave."""


class HeadersReply(msgspec.Struct, frozen=True):
    """The reply to headers."""

    side: Side
    put: Settings = ()
    remove: tuple[str, ...] = ()
    endpoints: str = ""
    """The endpoints for the metadata, separated by commas; empty: the reply names none."""
    shows_body: BodyMode | None = None
    """With a request: how the gateway is to show the response's body, and the request's not at all;
    None: as it is configured."""


class BodyReply(msgspec.Struct, frozen=True):
    """The reply to a piece of a body."""

    side: Side
    data: bytes | None = None
    """The piece that the gateway sends on in place of its own; None: the gateway's own piece."""
    ends: bool = False
    is_sent_back: bool = False
    """Whether the body is sent back in pieces, each in a reply of its own."""
    put: Settings = ()
    remove: tuple[str, ...] = ()
    endpoints: str = ""
    """As in HeadersReply: set here if the reply to the headers had to come before the pick."""


class TrailersReply(msgspec.Struct, frozen=True):
    """The reply to trailers."""

    side: Side
    endpoints: str = ""
    """As in HeadersReply: set here if the request has trailers and no body."""


@dataclass(frozen=True, slots=True)
class ImmediateReply:
    """A response in place of an engine's; the exchange is over."""

    status: int
    body: bytes
    put: Settings = ()


Reply = HeadersReply | BodyReply | TrailersReply | ImmediateReply


class WantReport(msgspec.Struct, frozen=True):
    """Asks for a report on the progress of the picked request."""

    booking_id: str
    event: ReportEvent
    where: Endpoint | None = None
    """With `started`: the endpoint that serves the request."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    is_refusal: bool = False
    """With `failed`: whether the picked rank refused the request, or another endpoint answered it."""


Action = WantPick | Reply | WantReport


@dataclass(frozen=True, slots=True)
class NoPickResponse:
    """The response to a request that gets no pick."""

    status: int
    """HTTP's status."""
    reason: str
    """One word for programs."""
    text: str
    retry_after: float = 0.0
    """Seconds after which the client may retry; 0: the response names no time."""
