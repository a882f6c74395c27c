"""What an exchange asks of whoever drives it: picks, answers to the gateway, reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

Side = Literal["request", "response"]

Settings = tuple[tuple[str, str], ...]
"""Names and values of headers that replace others of the same name."""


@dataclass(frozen=True, slots=True)
class WantPick:
    """An endpoint is to be picked; the exchange goes on with `picked`, `refused` or `let_through`."""

    path: str
    body: bytes
    """The whole body, or its beginning."""
    content_type: str
    content_encoding: str
    model: str
    """The name of the model that the engine is to be asked for, by a header; empty: as the body says."""
    session: str
    subset: frozenset[str] | None
    is_shadow: bool
    """Whether the gateway chooses, and only shows the exchange."""


class Endpoint(NamedTuple):
    """A rank of a pod that may serve the request."""

    pod: str
    rank: int
    cached_tokens: int
    """Tokens of the prompt that it is predicted to hold."""
    saved_seconds: float
    """Seconds of prefill that these tokens are predicted to save."""


@dataclass(frozen=True, slots=True)
class Picked:
    """The pick for an exchange."""

    booking_id: str
    endpoints: Mapping[str, Endpoint]
    """By address, best first, in the order to try them; at least one."""
    engine_rank: int | None = None
    """The engine's own number of the picked rank; None if its pod has one only."""
    body: bytes | None = None
    """The body with another model's name; None if it stays."""


@dataclass(frozen=True, slots=True)
class HeadersReply:
    """The answer to headers."""

    side: Side
    put: Settings = ()
    remove: tuple[str, ...] = ()
    endpoints: str = ""
    """The endpoints, separated by commas, for the metadata; empty: none are told."""


@dataclass(frozen=True, slots=True)
class BodyReply:
    """The answer to a piece of a body."""

    side: Side
    data: bytes | None = None
    """The piece that the gateway sends on in place of what it sent here; None: that very piece."""
    ends: bool = False
    is_sent_back: bool = False
    """Whether the body is sent back in pieces, each as an answer of its own."""
    put: Settings = ()
    remove: tuple[str, ...] = ()
    endpoints: str = ""
    """As in HeadersReply, where the answer to the headers had to come before the pick."""


@dataclass(frozen=True, slots=True)
class TrailersReply:
    """The answer to trailers."""

    side: Side
    endpoints: str = ""
    """As in HeadersReply, where nothing but trailers came after the headers."""


@dataclass(frozen=True, slots=True)
class ImmediateReply:
    """A response in place of an engine's; the exchange is over."""

    status: int
    body: bytes
    put: Settings = ()


Reply = HeadersReply | BodyReply | TrailersReply | ImmediateReply


class Happened(Enum):
    """What became of a picked request, as Report names it."""

    STARTED = "STARTED"
    FIRST_TOKEN = "FIRST_TOKEN"  # noqa: S105  no password
    FINISHED = "FINISHED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Report:
    """The picked request's progress is to be reported."""

    booking_id: str
    happened: Happened
    where: Endpoint | None = None
    """With STARTED: who serves it."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


Action = WantPick | Reply | Report


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets no pick."""

    status: int
    """HTTP's status."""
    reason: str
    """One word for machines."""
    text: str
    retry_after: float = field(default=0.0)
    """Seconds; 0: not told."""
