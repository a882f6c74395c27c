"""The events of one HTTP exchange that a gateway sends, and the actions that the exchange asks for.

These are picks, replies to the gateway, and reports. A request that gets no pick has a response of ours.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import grpc
import msgspec

from warmpath.proto.errors import Reason
from warmpath.router.admission.admission import BusyError
from warmpath.router.calls.failures import reason_of, text_of
from warmpath.router.config.schema import PickerHeadersTable
from warmpath.router.endpoint_picker.protocol import DESTINATION, RANK, BodyMode
from warmpath.router.inference_api.model_name import Renaming
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.report import Report
from warmpath.router.queue.request import QueueFullError

Side = Literal["request", "response"]
Part = Literal["headers", "body", "trailers"]

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, and values; a name may come more than once."""
Settings = tuple[tuple[str, str], ...]
"""Names and values of headers that replace others of the same name."""


class Modes(msgspec.Struct, frozen=True):
    """How a gateway sends the bodies of an exchange."""

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    is_watched: bool = False
    """Whether the gateway ignores replies and the picker only watches (`observability_mode`)."""


class Event(msgspec.Struct, frozen=True):
    """A part of a request or of a response has arrived."""

    side: Side
    part: Part
    ends: bool = False
    """Whether nothing of the request or the response follows."""
    headers: Headers = ()
    data: bytes = b""
    """The piece of the body."""
    modes: Modes | None = None
    """Set with a request's headers, and with a response's if they are the first event of an exchange."""
    subset: frozenset[str] | None = None
    """The only endpoints that may be picked; None: all. Each event of a request may have this."""
    served: str = ""
    """With a response's headers: the endpoint that served the request; empty if it is not named."""
    own_reason: str = ""
    """With a response's headers: the reason if the response is the gateway's own, such as NO_POD; empty
    for an endpoint's."""


class WantPick(msgspec.Struct, frozen=True):
    """The exchange needs a pick; its caller then calls `picked`, `refused` or `let_through`."""

    body: bytes
    """The whole body, or its beginning."""
    subset: frozenset[str] | None
    headers: Mapping[str, str]
    """All of the request's headers, the first value of each. An empty name, of a header that is not
    configured, has an empty value."""
    is_shadow: bool
    """Whether the gateway chooses the endpoint itself, and the picker only watches the exchange."""
    as_of: float | None = None
    """As in `router.pick.weigh.Ask`."""
    is_one_call: bool = False
    """Whether the gateway asks in one call: it sends the client's own body on, and waits for seconds."""


class Endpoint(msgspec.Struct, frozen=True):
    """A rank of a pod that may serve the request."""

    pod: str
    rank: int
    cached_tokens: int | None
    """Tokens of the prompt that it is predicted to hold; None: the prompt is not known."""
    saved_seconds: float
    """Seconds of prefill that these tokens are predicted to save."""

    def told(self, ours: PickerHeadersTable, *, is_error: bool) -> Settings:
        """Return the response's headers: what it held only where it has read a known prompt."""
        told: Settings = ()
        if ours.pod:
            told = ((ours.pod, self.pod),)
        if self.cached_tokens is not None and not is_error:
            if ours.cached_tokens:
                told += ((ours.cached_tokens, str(self.cached_tokens)),)
            if ours.saved_seconds:
                told += ((ours.saved_seconds, f"{self.saved_seconds:.3f}"),)
        return told


class Picked(msgspec.Struct, frozen=True):
    """The pick for an exchange."""

    booking_id: str
    endpoints: Mapping[str, Endpoint]
    """The endpoints by address, in the order to try them, best first; at least one."""
    engine_rank: int | None = None
    """The engine's own number of the picked rank; None if its pod has only one rank."""
    prefill: str = ""
    """The address of the pod that is to prefill; empty: the one that serves the request. The booking is
    on it, and so are the cached tokens of the endpoints."""
    body: bytes | None = None
    """The body with another model's name; None if it stays."""
    renaming: Renaming | None = None
    """The names of the model, if `body` has another than the client gave."""

    def put(self, ours: PickerHeadersTable) -> Settings:
        """Return the headers that the request to the engine gets."""
        put: Settings = ((DESTINATION, ",".join(self.endpoints)),)
        if self.engine_rank is not None:
            put += ((RANK, str(self.engine_rank)),)
        if self.prefill:
            put += ((ours.prefill, self.prefill),)
        return put


class Reply(msgspec.Struct, frozen=True):
    """The reply to headers, to a piece of a body, or to trailers."""

    side: Side
    part: Part
    put: Settings = ()
    remove: tuple[str, ...] = ()
    endpoints: str = ""
    """The endpoints for the metadata, separated by commas; empty: the reply names none. They come later
    than with the headers if these had to be answered before the pick."""
    data: bytes | None = None
    """The piece that the gateway sends on in place of its own; None: the gateway's own piece."""
    ends: bool = False
    is_sent_back: bool = False
    """Whether the body is sent back in pieces, each in a reply of its own."""
    shows_body: BodyMode | None = None
    """With a request's headers: how the gateway is to show the response's body, and the request's not at
    all; None: as it is configured."""


@dataclass(frozen=True, slots=True)
class ImmediateReply:
    """A response in place of an engine's; the exchange is over."""

    status: int
    body: bytes
    put: Settings = ()


@dataclass(frozen=True, slots=True)
class Patience:
    """The gateway is to wait longer for the reply to its last message."""

    seconds: float


Action = WantPick | Reply | ImmediateReply | Report


class MessageError(Exception):
    """A message of the gateway is not an event of an exchange."""


class OrderError(Exception):
    """An event came in an order that HTTP does not allow."""


def is_upgrade(headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket or a tunnel, whose body does not end."""
    upgrade = value_of(headers, "upgrade").lower()
    return "websocket" in upgrade or value_of(headers, ":method") == "CONNECT"


def value_of(headers: Headers, name: str) -> str:
    """Return the first value of a header; empty if it is missing."""
    return next((value for key, value in headers if key == name), "")


class UnmatchedSubsetError(Exception):
    """None of the endpoints to which the gateway restricts a pick is known."""

    def __init__(self, count: int) -> None:
        super().__init__(f"none of the {count} endpoints that the gateway allows is known")


class NeedsExchangeError(Exception):
    """The pick needs more than one call: the body has to change, or the request waits for a pod."""


UNAVAILABLE = 503
TOO_MANY = 429


TYPES = {UNAVAILABLE: "service_unavailable", TOO_MANY: "too_many_requests"}


class Outcome(Enum):
    """The outcome of one request for a pick, and the gRPC status under which metrics count it."""

    PICKED = "picked", grpc.StatusCode.OK
    NO_POD = "no_pod", grpc.StatusCode.UNAVAILABLE
    SUBSET_UNMATCHED = "subset_unmatched", grpc.StatusCode.UNAVAILABLE
    OVERLOADED = "overloaded", grpc.StatusCode.RESOURCE_EXHAUSTED
    LATE = "late", grpc.StatusCode.DEADLINE_EXCEEDED
    FAULT = "fault", grpc.StatusCode.INTERNAL
    GONE = "gone", grpc.StatusCode.CANCELLED
    """The request's stream ended before the reply with the pick was sent."""

    def __init__(self, label: str, code: grpc.StatusCode) -> None:
        self.label = label
        self.code = code.name


DROPPED = {
    Outcome.NO_POD: "rejected-no-endpoints",
    Outcome.SUBSET_UNMATCHED: "rejected-no-endpoints",
    Outcome.OVERLOADED: "rejected-saturated",
    Outcome.LATE: "rejected-ttl-expired",
}
"""llm-d's words for refusals (its pkg/common/error), which has none for a fault."""


@dataclass(frozen=True, slots=True)
class NoPick:
    """A request that gets no pick, and the response to it."""

    outcome: Outcome
    status: int
    """The HTTP status of the response."""
    reason: str
    """Why, as one word for programs."""
    text: str
    retry_after: float = 0.0
    """Seconds after which the client may retry; 0: the response names no time."""

    @property
    def is_ours(self) -> bool:
        """Whether the router is to blame, so that a gateway may go on without it."""
        return self.outcome in (Outcome.OVERLOADED, Outcome.LATE, Outcome.FAULT)


def failure_of(error: Exception, seconds: float) -> NoPick:
    """Return the failure for an error of a pick; one that is not listed is a fault of the router.

    `seconds` is the longest time for a pick. A reason is one of `warmpath.v1.RequestError.Reason`, or
    SUBSET_UNMATCHED or PICK_LATE, which only this service has.
    """
    text = text_of(error)
    match error:
        case NoPodError():
            return NoPick(Outcome.NO_POD, UNAVAILABLE, Reason.Name(Reason.NO_POD), text)
        case UnmatchedSubsetError():
            return NoPick(Outcome.SUBSET_UNMATCHED, UNAVAILABLE, "SUBSET_UNMATCHED", str(error))
        case BusyError() | QueueFullError():
            return NoPick(Outcome.OVERLOADED, TOO_MANY, reason_of(error), text, error.seconds)
        case TimeoutError():
            text = f"no pick was made within {seconds:g} s (endpoint-picker.pick-seconds)"
            return NoPick(Outcome.LATE, UNAVAILABLE, "PICK_LATE", text)
    return NoPick(Outcome.FAULT, UNAVAILABLE, Reason.Name(Reason.INTERNAL_ERROR), text)


def immediate(refusal: NoPick, ours: PickerHeadersTable) -> ImmediateReply:
    """Return a refusal as a response like OpenAI's errors; headers have the reason, too."""
    error = {"message": refusal.text, "type": TYPES[refusal.status], "code": refusal.reason}
    put: Settings = (("content-type", "application/json"),)
    if ours.reason:
        put += ((ours.reason, refusal.reason),)
    if ours.dropped and (dropped := DROPPED.get(refusal.outcome)):
        put += ((ours.dropped, dropped),)
    if refusal.retry_after:
        put += (("retry-after", str(math.ceil(refusal.retry_after))),)
    return ImmediateReply(refusal.status, msgspec.json.encode({"error": error}), put)
