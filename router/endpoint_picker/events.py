"""The events of one HTTP exchange that a gateway sends, in the order in which they happen."""

import msgspec

from warmpath.router.endpoint_picker.protocol import BodyMode

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, and values; a name may come more than once."""


class Modes(msgspec.Struct, frozen=True):
    """How a gateway sends the bodies of an exchange."""

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    is_watched: bool = False
    """Whether the gateway ignores replies and the picker only watches (`observability_mode`)."""


class RequestHeaders(msgspec.Struct, frozen=True):
    """The headers of a request have arrived."""

    headers: Headers
    ends: bool = False
    """Whether nothing of the request follows."""
    modes: Modes = Modes()
    subset: frozenset[str] | None = None
    """The only endpoints that may be picked; None: all. Each event of a request may have this."""


class RequestBody(msgspec.Struct, frozen=True):
    """A piece of the request's body."""

    data: bytes
    ends: bool = False
    """Whether nothing of the request follows."""
    subset: frozenset[str] | None = None


class RequestTrailers(msgspec.Struct, frozen=True):
    """The request ends with trailers."""

    subset: frozenset[str] | None = None


class ResponseHeaders(msgspec.Struct, frozen=True):
    """The response begins."""

    headers: Headers
    ends: bool = False
    served: str = ""
    """The endpoint that served the request; empty if the gateway does not name it."""
    modes: Modes | None = None
    """Set only if this is the first event of an exchange."""
    own_reason: str = ""
    """The reason if the response is the gateway's own, such as NO_POD; empty for an endpoint's."""


class ResponseBody(msgspec.Struct, frozen=True):
    """A piece of the response's body."""

    data: bytes
    ends: bool = False


class ResponseTrailers(msgspec.Struct, frozen=True):
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
    """A message of the gateway is not an event of an exchange."""


class OrderError(Exception):
    """An event came in an order that HTTP does not allow."""


def is_upgrade(headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket or a tunnel, whose body does not end."""
    upgrade = value_of(headers, "upgrade").lower()
    return "websocket" in upgrade or value_of(headers, ":method") == "CONNECT"


def value_of(headers: Headers, name: str) -> str:
    """Return the first value of a header; empty if it is missing."""
    for key, value in headers:
        if key == name:
            return value
    return ""
