"""The figures measured in one run of recorded traffic, under one policy."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Self

from warmpath.router.diagnosis.shadow import imbalance, quantile


@dataclass(frozen=True, slots=True)
class Served:
    """One request as its client saw it. Times are modelled seconds unless they say otherwise."""

    session: str
    """The name of the agent's session that it is of; empty: a chat's, which belongs to none."""
    arrived: float
    """Seconds from the run's start to the time at which the request was due."""
    pod: int
    """The pod's position in the list of addresses."""
    prompt_tokens: int
    cached_tokens: int
    delay: float
    """Seconds from the due time until the pod was chosen, part of the next two."""
    first_token: float
    """Seconds from arrival to the first token."""
    finished: float
    """Seconds from arrival to the last token."""
    choice: float
    """The duration of the choice, in seconds of the clock."""


class Took(NamedTuple):
    """A duration in modelled seconds, and how much of it choices of pods took."""

    seconds: float
    delay: float


def sessions(served: Iterable[Served]) -> list[Took]:
    """Return how long each session took, from its first request to the end of its last answer."""
    by_name = attrgetter("session")
    of_sessions = sorted((one for one in served if one.session), key=by_name)
    grouped = (list(group) for _, group in groupby(of_sessions, by_name))
    return [
        Took(
            max(one.arrived + one.finished for one in group) - min(one.arrived for one in group),
            sum(one.delay for one in group),
        )
        for group in grouped
    ]


@dataclass(slots=True)
class TrafficRun:
    """One run of recorded traffic: its outcome so far."""

    served: list[Served] = field(default_factory=list)
    failed: int = 0
    problem: str = ""
    """The error of the last failed request."""
    fell_back: int = 0
    """Number of requests that a pod did not serve and another one was asked for."""

    @property
    def done(self) -> int:
        """Number of requests that have ended."""
        return len(self.served) + self.failed

    @property
    def hit_ratio(self) -> float:
        """Cached tokens over prompt tokens of the served requests."""
        prompt = sum(one.prompt_tokens for one in self.served)
        return sum(one.cached_tokens for one in self.served) / prompt if prompt else 0.0

    @property
    def delay(self) -> float:
        """The delay that one request in ten exceeds, in modelled seconds."""
        return quantile(sorted(one.delay for one in self.served), 0.9)


@dataclass(frozen=True, slots=True)
class Times:
    """Quantiles of durations, in modelled seconds, and of the parts that choices of pods took.

    Modelled seconds exaggerate these parts: they grow with the speed.
    """

    p50: float
    p90: float
    delay_p50: float
    delay_p90: float

    @classmethod
    def of(cls, took: Iterable[Took]) -> Self:
        seconds, delays = map(sorted, zip(*took, strict=True)) if (took := [*took]) else ([], [])
        return cls(*(quantile(of, share) for of in (seconds, delays) for share in (0.5, 0.9)))


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
    sessions: Times
    """Durations of agents' sessions."""
    agents_ttft: Times
    """Times to first token of agents' requests."""
    chats_ttft: Times
    imbalance: float
    """Prompt tokens computed by the busiest pod, divided by the mean over all pods; 1 is even."""
    delay: float
    """Modelled seconds until a pod was chosen that one request in ten exceeds."""
    choice_p50_ms: float
    """Milliseconds of the clock for a choice (median)."""
    choice_p99_ms: float


def figures(run: TrafficRun, pods: int) -> RunFigures:
    """Return a run's figures."""
    computed = [0] * pods
    for one in run.served:
        computed[one.pod] += one.prompt_tokens - one.cached_tokens
    choices = sorted(one.choice for one in run.served)
    return RunFigures(
        requests=len(run.served),
        failed=run.failed,
        fell_back=run.fell_back,
        hit_ratio=run.hit_ratio,
        saved_tokens=sum(one.cached_tokens for one in run.served),
        sessions=Times.of(sessions(run.served)),
        agents_ttft=Times.of(Took(one.first_token, one.delay) for one in run.served if one.session),
        chats_ttft=Times.of(
            Took(one.first_token, one.delay) for one in run.served if not one.session
        ),
        imbalance=imbalance(computed) or 1.0,
        delay=run.delay,
        choice_p50_ms=quantile(choices, 0.5) * 1000,
        choice_p99_ms=quantile(choices, 0.99) * 1000,
    )
