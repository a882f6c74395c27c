"""The results of verifying a recording."""

from dataclasses import asdict, dataclass, field
from typing import Any

from warmpath.indexer.trust import Level, Trust


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One request for which prediction and engine differ; figures in tokens."""

    request: int
    life: int
    """Counts the engine's starts, from 1: request ids begin again with each."""
    predicted: int
    on_arrival: int
    actual: int
    reason: str
    trust: str
    """The trust at the time of the prediction."""


@dataclass(slots=True)
class RecordingOutcome:
    """Sums over one recording: requests, exact predictions, errors and changes of trust."""

    requests: int = 0
    exact: int = 0
    exact_on_arrival: int = 0
    abs_error_tokens: int = 0
    skipped: int = 0
    """Requests without a reported number of cached tokens."""
    cut_after: int = 0
    """Number of the line within which the recording is cut off; 0: it is complete."""
    overclaimed: int = 0
    """Requests with fewer cached tokens than predicted, though the trust was exact."""
    trust_changes: list[dict[str, Any]] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    trust: Trust = field(default_factory=lambda: Trust(Level.COLD, "no event seen", 0.0))

    @property
    def exact_ratio(self) -> float:
        """The share of requests predicted exactly; 1 without any request."""
        return self.exact / self.requests if self.requests else 1.0

    @property
    def mean_abs_error_tokens(self) -> float:
        """The mean absolute error per request, in tokens; 0 where there was none."""
        return self.abs_error_tokens / self.requests if self.requests else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as `warmpath verify --json` prints it."""
        return {
            "requests": self.requests,
            "exact": self.exact,
            "exact_ratio": self.exact_ratio,
            "exact_on_arrival": self.exact_on_arrival,
            "mean_abs_error_tokens": self.mean_abs_error_tokens,
            "skipped": self.skipped,
            "cut_after": self.cut_after,
            "mismatches": [asdict(miss) for miss in self.mismatches],
            "trust": str(self.trust.level),
            "reasons": [self.trust.reason],
            "overclaimed": self.overclaimed,
            "trust_changes": self.trust_changes,
        }
