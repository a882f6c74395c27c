"""The queue's settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The settings of a queue. Times are seconds.

    Source of `beta` and `most_looks`: "Queue" in `../shared/bench/policy-study-2.md`. It has 0.2 for
    `hold_seconds`, which is too little for engines that compute several prompts in one step.
    """

    hold_seconds: float = 0.4
    """Most booked prefill of a rank that has room for another request."""
    beta: float = 10.0
    """A request goes before those that arrived up to `beta` times their additional prefill earlier."""
    most_looks: int = 32
    """Most waiting requests that one release weighs."""
    most_passed_seconds: float = 60.0
    """No request is passed over by one of its class and tenant that arrived this much later."""
    most_wait_seconds: float = 30.0
    """Longest wait; then a request goes to the pod that is best at that time."""
    most_requests: int = 10_000
    """Most waiting requests."""
    most_bytes: int = 256 << 20
    """Most bytes of all waiting requests."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Weights of the tenants' shares; a tenant that is missing has 1."""
