"""The queue's settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from warmpath.router.load.precedence import USUAL, Precedence


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue. Times are seconds.

    A study of policies has 0.2 for
    `hold_seconds`, which is too little for engines that compute several prompts in one step.
    """

    hold_seconds: float = 0.4
    """Most booked prefill of a rank that has room for another request."""
    precedence: Precedence = USUAL
    """The order within a class and tenant."""
    most_looks: int = 32
    """Most waiting requests that one release weighs."""
    most_wait_seconds: float = 30.0
    """Longest wait; then a request goes to the pod that is best at that time."""
    most_requests: int = 10_000
    """Most waiting requests."""
    most_bytes: int = 256 << 20
    """Most bytes of all waiting requests."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Weights of the tenants' shares; a tenant that is missing has 1."""
