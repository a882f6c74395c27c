"""Envoy's messages to events, and replies to Envoy's messages.

The messages are those of the package `xds-protos`. Only processes that serve the picker import this
module: the import takes 12 ms and less than 1 MB.
"""

import re
from typing import Any, get_args

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError

from warmpath.router.calls.parse import varint_at
from warmpath.router.calls.replies import varint
from warmpath.router.endpoint_picker.events import (
    Event,
    Headers,
    ImmediateReply,
    MessageError,
    Modes,
    Part,
    Patience,
    Reply,
    Settings,
    Side,
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
from warmpath.router.pods.table import endpoint

MOST_BESIDE_BYTES = 256 << 10
"""Most bytes of a message beside a piece of a body: Envoy's own limit on headers is 60 KiB, and the
metadata may name thousands of endpoints."""
BODY_TAGS = (0x22, 0x2A)
"""The tags of `request_body` and `response_body`, with which a message with that field begins."""

_PIECE = re.compile(rb"\x2a[\x80-\xff][\x01-\x7f]\x0a[\x80-\xff][\x01-\x7f]")
"""The tags of `response_body` in a message, and of `body` in that, with lengths of two bytes."""
BODY_ENDS = b"\x10\x01"
"""`end_of_stream`, after a `body`, in what is sent and in what is sent back."""
STREAMED_RESPONSE = (0x1A, 0x1A, 0x0A, 0x22)
"""The tags around a piece that is sent back, from within: `streamed_response`, `body_mutation`,
`response`, `response_body`."""
GOES_ON = b"\x22\x02\x0a\x00"
"""The reply that lets a piece of a response's body pass: an empty `response` in `response_body`."""

PARTS: dict[str, tuple[Side, Part]] = {
    f"{side}_{part}": (side, part) for side in get_args(Side) for part in get_args(Part)
}
"""The side and the part of each field with a part of an HTTP exchange."""
REPLACES = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def event_of(raw: bytes) -> Event:
    """Return the event in a ProcessingRequest. Raises MessageError."""
    if len(raw) > MOST_BESIDE_BYTES:
        _check_size(raw)
    if (piece := _piece_of(raw)) is not None:
        return piece
    try:
        message = pb.ProcessingRequest.FromString(raw)
    except DecodeError as error:
        raise MessageError("a message is not a ProcessingRequest") from error
    if (found := message.WhichOneof("request")) is None:
        raise MessageError("a message has no known part of an HTTP exchange")
    side, part = PARTS[found]
    told = getattr(message, found)
    subset = _subset(message) if side == "request" else None
    if part == "trailers":
        return Event(side, part, ends=True, subset=subset)
    if part == "body":
        return Event(side, part, told.end_of_stream, data=told.body, subset=subset)
    headers = _headers(told.headers.headers)
    if side == "request":
        return Event(side, part, told.end_of_stream, headers, modes=_modes(message), subset=subset)
    # Only the first message of an exchange has its modes.
    modes = _modes(message) if message.HasField("protocol_config") else None
    return Event(
        side,
        part,
        told.end_of_stream,
        headers,
        modes=modes,
        served=_served(message),
        own_reason=_own_reason(message),
    )


def _piece_of(raw: bytes) -> Event | None:
    """Return the piece of a response's body at a message's beginning; None if it has other fields.

    What follows it, such as metadata, does not matter to a piece.
    """
    if _PIECE.match(raw) is None:
        return None
    # Lengths of two bytes, between 128 and 16,383, are those of nearly all pieces.
    outer, inner = raw[1] & 0x7F | raw[2] << 7, raw[4] & 0x7F | raw[5] << 7
    end, rest = 6 + inner, outer - inner - 3
    if not rest and end <= len(raw):
        return Event("response", "body", data=raw[6:end])
    is_last = rest == len(BODY_ENDS) and raw.startswith(BODY_ENDS, end)
    return Event("response", "body", True, data=raw[6:end]) if is_last else None


def _sent_back(data: bytes, *, ends: bool) -> bytes:
    """Return the reply that sends a piece of a response's body back."""
    last = BODY_ENDS if ends else b""
    piece = b"\x0a%b%b%b" % (varint(len(data)), data, last) if data else last
    for tag in STREAMED_RESPONSE:
        piece = b"%c%b%b" % (tag, varint(len(piece)), piece)
    return piece


def bytes_of(reply: Reply | ImmediateReply | Patience) -> bytes:
    """Return a reply as a ProcessingResponse."""
    if isinstance(reply, Reply) and reply.side == "response" and reply.part == "body":
        if reply.is_sent_back:
            return _sent_back(reply.data or b"", ends=reply.ends)
        if reply.data is None:
            return GOES_ON
    # Each message is filled in place: one given to another's constructor would be copied, with the
    # piece of a body in it.
    message = pb.ProcessingResponse()
    if isinstance(reply, Patience):
        message.override_message_timeout.FromNanoseconds(round(reply.seconds * 1e9))
    elif isinstance(reply, ImmediateReply):
        immediate = message.immediate_response
        immediate.status.code = reply.status
        immediate.body = reply.body
        _put(immediate.headers, reply.put)
    else:
        _fill(message, reply)
    raw: bytes = message.SerializeToString(deterministic=True)
    return raw


def _fill(message: Any, reply: Reply) -> None:
    told = getattr(message, f"{reply.side}_{reply.part}")
    told.SetInParent()
    if reply.endpoints:
        space = message.dynamic_metadata.fields[NAMESPACE].struct_value
        space.fields[DESTINATION].string_value = reply.endpoints
    if reply.part == "trailers":
        return
    common = told.response
    common.SetInParent()
    common.clear_route_cache = bool(reply.endpoints)
    if reply.put or reply.remove:
        _put(common.header_mutation, reply.put)
        common.header_mutation.remove_headers.extend(reply.remove)
    if reply.is_sent_back:
        piece = common.body_mutation.streamed_response
        piece.body, piece.end_of_stream = reply.data, reply.ends
        piece.SetInParent()
    elif reply.data is not None:
        common.body_mutation.body = reply.data
    if reply.shows_body is not None:
        # The field's other modes are their defaults; the request's body is not shown then.
        message.mode_override.response_body_mode = reply.shows_body
        message.mode_override.SetInParent()


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
        beside -= min(varint_at(raw, 1, len(raw))[0], len(raw))
    if beside > MOST_BESIDE_BYTES:
        raise MessageError(
            f"a message has {beside} bytes beside a body; at most {MOST_BESIDE_BYTES} are taken"
        )
