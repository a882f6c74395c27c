"""The outcomes of requests that ask for a pick, and the responses to those that get none.

`failure_of` chooses the HTTP response to an error of a pick.
"""

import math
from dataclasses import dataclass
from enum import Enum

import grpc
import msgspec

from warmpath.proto.errors import Reason
from warmpath.router.admission.admission import BusyError
from warmpath.router.calls.failures import reason_of, text_of
from warmpath.router.endpoint_picker.events import ImmediateReply, Settings
from warmpath.router.endpoint_picker.pick import UnmatchedSubsetError
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.queue.request import QueueFullError

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
    """Its stream ended before the reply with the pick was sent."""

    def __init__(self, label: str, code: grpc.StatusCode) -> None:
        self.label = label
        self.code = code


@dataclass(frozen=True, slots=True)
class NoPick:
    """A request that gets no pick, and the response to it."""

    outcome: Outcome
    status: int
    """HTTP's status."""
    reason: str
    """One word for programs."""
    text: str
    retry_after: float = 0.0
    """Seconds after which the client may retry; 0: the response names no time."""

    @property
    def is_ours(self) -> bool:
        """Whether the router is to blame, so that a gateway may go on without it."""
        return self.outcome in (Outcome.OVERLOADED, Outcome.LATE, Outcome.FAULT)


def failure_of(error: Exception, seconds: float) -> NoPick:
    """Return the failure for an error of a pick; `seconds` is the longest time for a pick.

    The reasons are those of `warmpath.v1.RequestError`, `SUBSET_UNMATCHED` and `PICK_LATE`.
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


def immediate(refusal: NoPick, header: str) -> ImmediateReply:
    """Return a refusal as a response, in the form of OpenAI's errors; `header` gets the reason."""
    error = {"message": refusal.text, "type": TYPES[refusal.status], "code": refusal.reason}
    put: Settings = (("content-type", "application/json"),)
    if header:
        put += ((header, refusal.reason),)
    if refusal.retry_after:
        put += (("retry-after", str(math.ceil(refusal.retry_after))),)
    return ImmediateReply(refusal.status, msgspec.json.encode({"error": error}), put)
