"""What becomes of a request that wants a pick, and the response to one that gets none."""

from dataclasses import dataclass
from enum import Enum

import grpc

from indexer.process.shortened import shortened
from router.api.admission import BusyError
from router.endpoint_picker.actions import Refusal
from router.endpoint_picker.pick import UnmatchedSubsetError
from router.endpoint_picker.refusals import TOO_MANY, UNAVAILABLE
from router.pick.weigh import NoPodError

MOST_SAID = 400
"""Most characters of an error's text in a response."""


class Outcome(Enum):
    """What became of one request."""

    PICKED = "picked"
    NO_POD = "no_pod"
    SUBSET_UNMATCHED = "subset_unmatched"
    OVERLOADED = "overloaded"
    LATE = "late"
    FAULT = "fault"
    GONE = "gone"
    """Its stream ended before the pick was told."""


CODES = {
    Outcome.PICKED: grpc.StatusCode.OK,
    Outcome.NO_POD: grpc.StatusCode.UNAVAILABLE,
    Outcome.SUBSET_UNMATCHED: grpc.StatusCode.UNAVAILABLE,
    Outcome.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Outcome.LATE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Outcome.FAULT: grpc.StatusCode.INTERNAL,
    Outcome.GONE: grpc.StatusCode.CANCELLED,
}
"""The statuses with which the metrics count them among other calls."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that gets no pick."""

    outcome: Outcome
    refusal: Refusal

    @property
    def is_ours(self) -> bool:
        """Whether the router is to blame, so that a gateway may go on without it."""
        return self.outcome in (Outcome.OVERLOADED, Outcome.LATE, Outcome.FAULT)


def failure_of(error: Exception, seconds: float) -> Failure:
    """Return the failure that an error of a pick means; `seconds` is the longest time for a pick."""
    text, retry_after = shortened(str(error), MOST_SAID), 0.0
    match error:
        case NoPodError():
            outcome, status = Outcome.NO_POD, UNAVAILABLE
        case UnmatchedSubsetError():
            outcome, status = Outcome.SUBSET_UNMATCHED, UNAVAILABLE
        case BusyError():
            outcome, status = Outcome.OVERLOADED, TOO_MANY
            text, retry_after = "more requests come than are picked for", error.seconds
        case TimeoutError():
            outcome, status = Outcome.LATE, UNAVAILABLE
            text = f"no pick was made within {seconds:g} s (endpoint-picker.pick-seconds)"
        case _:
            outcome, status = Outcome.FAULT, UNAVAILABLE
            text = "the picker is at fault; its log says more"
    return Failure(outcome, Refusal(status, outcome.name, text, retry_after))
