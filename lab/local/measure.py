"""The figures measured in one run of recorded traffic, under one policy."""

from dataclasses import dataclass, field

from warmpath.router.diagnosis.shadow import imbalance, quantile


@dataclass(frozen=True, slots=True)
class Served:
    """One request as its client saw it. Times are modelled seconds."""

    arrived: float
    """Seconds from the run's start to the time at which the request was due."""
    pod: int
    """The pod's position in the list of addresses."""
    prompt_tokens: int
    cached_tokens: int
    first_token: float
    """Seconds from arrival to the first token."""
    finished: float
    """Seconds from arrival to the last token."""


@dataclass(slots=True)
class TrafficRun:
    """One run of recorded traffic: its outcome so far."""

    served: list[Served] = field(default_factory=list)
    failed: int = 0
    problem: str = ""
    """The error of the last failed request."""
    fell_back: int = 0
    """Number of requests that a pod did not serve and another one was asked for."""
    delays: list[float] = field(default_factory=list)
    """Modelled seconds from each due time to the choice of a pod, less the wait in the queue."""
    choices: list[float] = field(default_factory=list)
    """The duration of each choice, in wall-clock seconds, less the wait in the queue."""

    @property
    def done(self) -> int:
        """Number of requests that have ended."""
        return len(self.served) + self.failed

    @property
    def hit_ratio(self) -> float:
        """Cached tokens over prompt tokens of the served requests."""
        prompt = sum(one.prompt_tokens for one in self.served)
        return sum(one.cached_tokens for one in self.served) / prompt if prompt else 0.0


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures measured in one run, under one policy."""

    requests: int
    failed: int
    fell_back: int
    """Number of requests that a pod did not serve and another one was asked for."""
    hit_ratio: float
    """Cached tokens over prompt tokens, as the engines reported them."""
    saved_tokens: int
    """Prompt tokens that were cached, so that no engine computed them."""
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    imbalance: float
    """Prompt tokens computed by the busiest pod, divided by the mean over all pods; 1 is even."""
    delay_p50: float
    """Modelled seconds from a request's due time until its pod was chosen, less its wait in the queue.

    The times to first token include it. Modelled seconds exaggerate it: it grows with the speed.
    """
    delay_p90: float
    delay_p99: float
    choice_p50_ms: float
    """Wall-clock milliseconds per choice (median), less the wait in the queue."""
    choice_p99_ms: float


def figures(run: TrafficRun, pods: int) -> RunFigures:
    """Return a run's figures."""
    computed = [0] * pods
    for one in run.served:
        computed[one.pod] += one.prompt_tokens - one.cached_tokens
    ttft = sorted(one.first_token for one in run.served)
    delays, choices = sorted(run.delays), sorted(run.choices)
    return RunFigures(
        requests=len(run.served),
        failed=run.failed,
        fell_back=run.fell_back,
        hit_ratio=run.hit_ratio,
        saved_tokens=sum(one.cached_tokens for one in run.served),
        ttft_p50=quantile(ttft, 0.5),
        ttft_p90=quantile(ttft, 0.9),
        ttft_p99=quantile(ttft, 0.99),
        imbalance=imbalance(computed) or 1.0,
        delay_p50=quantile(delays, 0.5),
        delay_p90=quantile(delays, 0.9),
        delay_p99=quantile(delays, 0.99),
        choice_p50_ms=quantile(choices, 0.5) * 1000,
        choice_p99_ms=quantile(choices, 0.99) * 1000,
    )
