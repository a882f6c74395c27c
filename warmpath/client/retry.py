"""When a failed call is made again: rules without a clock, a sleep or a socket.

gRPC's library has retries of its own (gRFC A6), whose rules know only methods and status codes. Whether
a Pick may be made again depends on the request, too: one without a name of the caller's may have booked
work already, and then only a refusal of the router itself shows that it has not.
"""

from dataclasses import dataclass
from numbers import Integral
from random import Random

import grpc

from warmpath.client.checks import check_numbers
from warmpath.client.failure import CallError
from warmpath.proto.errors import Reason

MOST_ATTEMPTS = 10

LASTING = frozenset({Reason.Name(Reason.NO_POD)})
"""Reasons that outlast the pauses between attempts; a caller that learns of them at once can act."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a call is made again; `Retry(attempts=1)`: never.

    The pause before a retry is random, at most `first_seconds` before the first one and twice as long
    before each further one, up to `most_seconds`, and at least what the router says; what a busy router
    says counts exactly. Raises ValueError or TypeError for an impossible value.
    """

    attempts: int = 3
    """How often a call is made in all, 1 to 10."""
    first_seconds: float = 0.1
    most_seconds: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(Integral, attempts=self.attempts)
        check_numbers(first_seconds=self.first_seconds, most_seconds=self.most_seconds)
        if not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise ValueError(f"attempts is {self.attempts}; it must be 1 to {MOST_ATTEMPTS}")
        if not 0 <= self.first_seconds <= self.most_seconds <= 60:
            pauses = f"{self.first_seconds} and {self.most_seconds}"
            raise ValueError(
                f"first_seconds and most_seconds are {pauses}; they must be 0 to 60, in this order"
            )

    def pause(
        self, failure: CallError, made: int, *, is_repeatable: bool, left: float, rng: Random
    ) -> float | None:
        """Return the seconds to wait before the next attempt; None: there is none.

        `made` is how often the call was made, `left` the seconds to its deadline.
        """
        if made >= self.attempts or not failure.may_repeat or failure.reason in LASTING:
            return None
        # A call that the router itself has refused was not carried out.
        is_refused = failure.reason is not None or failure.retry_after is not None
        if failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            # The router refused to begin. If it names no time, the message itself may be too large,
            # and a retry would fail in the same way.
            pause = failure.retry_after
        elif failure.code is grpc.StatusCode.UNAVAILABLE and (is_repeatable or is_refused):
            bound = min(self.most_seconds, self.first_seconds * 2 ** (made - 1))
            # A router that ends asks for a retry at once at another router; that may be the same one,
            # started again, so the random pause remains.
            pause = max(failure.retry_after or 0.0, rng.uniform(0.0, bound))
        else:
            return None
        return pause if pause is not None and pause < left else None
