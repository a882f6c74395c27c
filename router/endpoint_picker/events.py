"""What a gateway tells of one HTTP exchange, in the order in which it happens."""

from dataclasses import dataclass

from router.endpoint_picker.protocol import BodyMode

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, and values; a name may come more than once."""


@dataclass(frozen=True, slots=True)
class Modes:
    """How a gateway sends the bodies of an exchange."""

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    is_watched: bool = False
    """Whether the gateway only shows the exchange and takes no answers (`observability_mode`)."""


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """The request begins."""

    headers: Headers
    ends: bool = False
    """Whether nothing of the request follows."""
    modes: Modes = Modes()
    subset: frozenset[str] | None = None
    """The only endpoints that may be picked; None: all. Each event of a request may tell it."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A piece of the request's body."""

    data: bytes
    ends: bool = False
    """Whether nothing of the request follows."""
    subset: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RequestTrailers:
    """The request ends with trailers."""

    subset: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ResponseHeaders:
    """The response begins."""

    headers: Headers
    ends: bool = False
    served: str = ""
    """The endpoint that served the request; empty if the gateway does not tell."""
    modes: Modes | None = None
    """Told if it is the first event of an exchange."""


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """A piece of the response's body."""

    data: bytes
    ends: bool = False


@dataclass(frozen=True, slots=True)
class ResponseTrailers:
    """The response ends with trailers."""


Event = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
)


class MessageError(Exception):
    """A message is no part of an exchange."""


class OrderError(Exception):
    """An event came that HTTP does not allow after those before it."""


def value_of(headers: Headers, name: str) -> str:
    """Return the first value of a header; empty if it is missing."""
    return next((value for key, value in headers if key == name), "")
