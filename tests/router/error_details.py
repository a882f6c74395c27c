"""Reads the details of a failed call: its reason, its metadata and when to try again."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import grpc
import grpc.aio

from warmpath.proto.pb.warmpath.wire.v1 import status_details_pb2 as wire

DETAILS = "grpc-status-details-bin"
PUSHBACK = "grpc-retry-pushback-ms"
TYPES = "type.googleapis.com/google.rpc."
CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True)
class ErrorDetails:
    """The details of a status and of its trailing metadata."""

    code: grpc.StatusCode
    reason: str
    metadata: dict[str, str]
    retry_seconds: float | None
    pushback_ms: int | None


def details_of(error: grpc.aio.AioRpcError) -> ErrorDetails:
    """Return the details of a call's error; they must agree with the status itself."""
    trailing = {str(key): value for key, value in error.trailing_metadata()}
    details, pushback = trailing[DETAILS], trailing.get(PUSHBACK)
    assert isinstance(details, bytes)
    return _details(error.code(), error.details() or "", details, pushback)


def details_in(headers: Mapping[str, bytes]) -> ErrorDetails:
    """Return the details in the headers that end a call on the wire."""
    encoded = headers[DETAILS]
    return _details(
        CODES[int(headers["grpc-status"])],
        unquote_to_bytes(headers["grpc-message"]).decode(),
        base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True),
        headers.get(PUSHBACK),
    )


def _details(
    code: grpc.StatusCode, text: str, details: bytes, pushback: str | bytes | None
) -> ErrorDetails:
    status = wire.Status.FromString(details)
    # gRPC's own readers of details refuse others.
    assert status.code == code.value[0]
    assert status.message == text
    of = {one.type_url.removeprefix(TYPES): one.value for one in status.details}
    info = wire.ErrorInfo.FromString(of.pop("ErrorInfo"))
    assert info.domain == "warmpath"
    seconds = None
    if "RetryInfo" in of:
        delay = wire.RetryInfo.FromString(of.pop("RetryInfo")).retry_delay
        seconds = delay.seconds + delay.nanos / 1e9
    assert not of
    return ErrorDetails(
        code, info.reason, dict(info.metadata), seconds, None if pushback is None else int(pushback)
    )
