"""Envoy's messages to events, and replies to Envoy's messages.

The messages are those of the package `xds-protos`. Only processes that serve the picker import this
module: the import takes 12 ms and less than 1 MB.
"""

from functools import lru_cache
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError

from warmpath.router.endpoint_picker.actions import (
    BodyReply,
    HeadersReply,
    ImmediateReply,
    Reply,
    Settings,
    TrailersReply,
)
from warmpath.router.endpoint_picker.addresses import endpoint
from warmpath.router.endpoint_picker.events import (
    Event,
    Headers,
    MessageError,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from warmpath.router.endpoint_picker.protocol import (
    DESTINATION,
    DETAILS_ATTRIBUTE,
    GATEWAY_ERROR,
    NAMESPACE,
    OF_AN_ENDPOINT,
    OWN_RESPONSES,
    SERVED,
    SUBSET,
    SUBSET_NAMESPACE,
    UPSTREAM_ATTRIBUTE,
    BodyMode,
)

MOST_BESIDE_BYTES = 256 << 10
"""Most bytes of a message beside a piece of a body: Envoy's own limit on headers is 60 KiB, and the
metadata may name thousands of endpoints."""
BODY_TAGS = (0x22, 0x2A)
"""The tags of `request_body` and `response_body`, with which a message with that field begins."""

REPLACES = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def event_of(raw: bytes) -> Event:
    """Return the event in a ProcessingRequest. Raises MessageError."""
    if len(raw) > MOST_BESIDE_BYTES:
        _check_size(raw)
    try:
        message = pb.ProcessingRequest.FromString(raw)
    except DecodeError as error:
        raise MessageError("a message is not a ProcessingRequest") from error
    match message.WhichOneof("request"):
        case "response_body":
            body = message.response_body
            return ResponseBody(body.body, body.end_of_stream)
        case "request_body":
            body = message.request_body
            return RequestBody(body.body, body.end_of_stream, _subset(message))
        case "request_headers":
            head = message.request_headers
            headers = _headers(head.headers.headers)
            return RequestHeaders(headers, head.end_of_stream, _modes(message), _subset(message))
        case "response_headers":
            head = message.response_headers
            # Only the first message of an exchange has its modes.
            modes = _modes(message) if message.HasField("protocol_config") else None
            headers = _headers(head.headers.headers)
            return ResponseHeaders(
                headers, head.end_of_stream, _served(message), modes, _own_reason(message)
            )
        case "request_trailers":
            return RequestTrailers(_subset(message))
        case "response_trailers":
            return ResponseTrailers()
    raise MessageError("a message has no known part of an HTTP exchange")


def bytes_of(reply: Reply) -> bytes:
    """Return a reply as a ProcessingResponse."""
    # Each message is filled in place: one given to another's constructor would be copied, with the
    # piece of a body in it.
    message = pb.ProcessingResponse()
    if isinstance(reply, BodyReply):
        if reply.data is None and not reply.put:
            return _unchanged(reply.side)
        _fill_body(message, reply)
    elif isinstance(reply, HeadersReply):
        of_side = message.request_headers if reply.side == "request" else message.response_headers
        of_side.response.SetInParent()
        _change(message, of_side.response, reply)
        if reply.shows_body is not None:
            # The field's other modes are their defaults; the request's body is not shown then.
            message.mode_override.response_body_mode = reply.shows_body
            message.mode_override.SetInParent()
    elif isinstance(reply, TrailersReply):
        getattr(message, f"{reply.side}_trailers").SetInParent()
        _tell(message, reply.endpoints)
    else:
        assert isinstance(reply, ImmediateReply)
        immediate = message.immediate_response
        immediate.status.code = reply.status
        immediate.body = reply.body
        _put(immediate.headers, reply.put)
    raw: bytes = message.SerializeToString(deterministic=True)
    return raw


def _fill_body(message: Any, reply: BodyReply) -> None:
    of_side = message.request_body if reply.side == "request" else message.response_body
    common = of_side.response
    if reply.is_sent_back:
        piece = common.body_mutation.streamed_response
        piece.body, piece.end_of_stream = reply.data, reply.ends
        piece.SetInParent()
    elif reply.data is not None:
        common.body_mutation.body = reply.data
    _change(message, common, reply)


@lru_cache(2)
def _unchanged(side: str) -> bytes:
    message = pb.ProcessingResponse()
    getattr(message, f"{side}_body").response.SetInParent()
    raw: bytes = message.SerializeToString()
    return raw


def _change(message: Any, common: Any, reply: HeadersReply | BodyReply) -> None:
    if reply.put or reply.remove:
        _put(common.header_mutation, reply.put)
        common.header_mutation.remove_headers.extend(reply.remove)
    if reply.endpoints:
        common.clear_route_cache = True
        _tell(message, reply.endpoints)


def _tell(message: Any, endpoints: str) -> None:
    if endpoints:
        space = message.dynamic_metadata.fields[NAMESPACE].struct_value
        space.fields[DESTINATION].string_value = endpoints


def _put(mutation: Any, put: Settings) -> None:
    for name, value in put:
        option = mutation.set_headers.add()
        option.append_action = REPLACES
        option.header.key = name
        option.header.raw_value = value.encode("latin-1", "replace")


def _headers(found: Any) -> Headers:
    # Envoy gives raw values; others may give texts.
    return tuple(
        (one.key.lower(), one.raw_value.decode("latin-1") if one.raw_value else one.value)
        for one in found
    )


def _modes(message: Any) -> Modes:
    """Return the modes of an exchange: the protocol's where the gateway names none."""
    is_watched = message.observability_mode
    if not message.HasField("protocol_config"):
        return Modes(is_watched=is_watched)
    config = message.protocol_config
    return Modes(_mode(config.request_body_mode), _mode(config.response_body_mode), is_watched)


def _mode(number: int) -> BodyMode:
    try:
        return BodyMode(number)
    except ValueError:
        raise MessageError(f"{number} is no known mode of sending a body") from None


def _subset(message: Any) -> frozenset[str] | None:
    """Return the only endpoints that may be picked; None if the gateway names none."""
    if not message.HasField("metadata_context"):
        return None
    spaces = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in spaces or SUBSET not in spaces[SUBSET_NAMESPACE].fields:
        return None
    value = spaces[SUBSET_NAMESPACE].fields[SUBSET]
    listed = value.list_value.values if value.HasField("list_value") else [value]
    # Envoy's header-to-metadata filter writes one text with commas.
    texts = (one.string_value for one in listed if one.HasField("string_value"))
    split = (part.strip() for text in texts for part in text.split(","))
    return frozenset(part for part in split if part)


def _served(message: Any) -> str:
    if message.HasField("metadata_context"):
        spaces = message.metadata_context.filter_metadata
        if NAMESPACE in spaces and SERVED in spaces[NAMESPACE].fields:
            return endpoint(spaces[NAMESPACE].fields[SERVED].string_value)
    for attributes in message.attributes.values():
        if UPSTREAM_ATTRIBUTE in attributes.fields:
            return endpoint(attributes.fields[UPSTREAM_ATTRIBUTE].string_value)
    return ""


def _own_reason(message: Any) -> str:
    """Return the reason of a response that the gateway itself gives; empty for an endpoint's."""
    for attributes in message.attributes.values():
        if DETAILS_ATTRIBUTE in attributes.fields:
            details: str = attributes.fields[DETAILS_ATTRIBUTE].string_value
            if details in ("", OF_AN_ENDPOINT):
                return ""
            fits = (why for start, why in OWN_RESPONSES.items() if details.startswith(start))
            return next(fits, GATEWAY_ERROR)
    return ""


def _check_size(raw: bytes) -> None:
    """Raise MessageError if a long message does not consist mainly of a piece of a body."""
    beside = len(raw)
    if raw[0] in BODY_TAGS:
        size = shift = 0
        for byte in raw[1:6]:
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        beside -= min(size, len(raw))
    if beside > MOST_BESIDE_BYTES:
        raise MessageError(
            f"a message has {beside} bytes beside a body; at most {MOST_BESIDE_BYTES} are taken"
        )
