"""The details of a gRPC status, from which programs learn why a call fails.

    trailing metadata
      grpc-status-details-bin   google.rpc.Status: code and text of the call's status, and
                                  google.rpc.ErrorInfo: reason, domain, metadata
                                  google.rpc.RetryInfo: the least time before a retry, if one makes sense
      grpc-retry-pushback-ms    that time in ms, which gRPC's clients obey when they retry by themselves

Sources: google/rpc/error_details.proto of googleapis/googleapis; gRFC A6 for the pushback;
grpc/doc/statuscodes.md for the statuses.
"""

import grpc

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.pb.warmpath.wire.v1 import status_details_pb2 as wire

Reason = pb.RequestError.Reason
"""All reasons; the contract says what each means and which status comes with it."""

Metadata = tuple[tuple[str, str | bytes], ...]

DOMAIN = "warmpath"
DETAILS = "grpc-status-details-bin"
PUSHBACK = "grpc-retry-pushback-ms"
TYPES = "type.googleapis.com/google.rpc."

NANOSECONDS = 10**9


def details(
    code: grpc.StatusCode,
    text: str,
    reason: "Reason.ValueType",
    *,
    retry_seconds: float | None = None,
    **facts: str,
) -> Metadata:
    """Return the trailing metadata of a status that ends a call with this code and text.

    `facts` are the metadata of the ErrorInfo. `retry_seconds` is the least time before a retry. 0 means
    at once, at another router; None means that no retry makes sense, or that nobody knows when.
    """
    info = wire.ErrorInfo(reason=Reason.Name(reason), domain=DOMAIN, metadata=facts)
    status = wire.Status(code=code.value[0], message=text)
    status.details.add(type_url=f"{TYPES}ErrorInfo", value=info.SerializeToString())
    if retry_seconds is None:
        return ((DETAILS, status.SerializeToString()),)
    seconds, nanos = divmod(round(retry_seconds * NANOSECONDS), NANOSECONDS)
    retry = wire.RetryInfo(retry_delay=wire.Duration(seconds=seconds, nanos=nanos))
    status.details.add(type_url=f"{TYPES}RetryInfo", value=retry.SerializeToString())
    metadata: Metadata = ((DETAILS, status.SerializeToString()),)
    if retry_seconds:
        metadata = (*metadata, (PUSHBACK, str(max(1, round(1000 * retry_seconds)))))
    return metadata
