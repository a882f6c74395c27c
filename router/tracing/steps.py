"""The steps of a call: each is timed for the metrics, and is a span where the call is traced."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from router.tracing.tracer import NO_TRACER, Tracer


class Step(StrEnum):
    """A step, by the name that metrics and spans give it (docs/architecture.md has their order)."""

    BODY = "body"
    """An HTTP body becomes a request: a gateway's only."""
    READ = "read"
    """A call's prompt is parsed and checked."""
    TOKENISE = "tokenise"
    """A text or chat becomes tokens, with all waits for the tokenizer."""
    LOOK_UP = "look-up"
    """Redis is asked for the prompt's blocks: shared mode only."""
    MATCH = "match"
    """What each rank holds of the prompt: of a Score."""
    GROUP = "group"
    """A pick waits for requests with the same prompt, where configured."""
    QUEUE = "queue"
    """A pick waits for a pod with room, where configured."""
    CHOOSE = "choose"
    """What each rank holds and would cost, and the policy's order of them; again at each look of the
    queue at a pick that waits."""
    REPLY = "reply"
    """The answer's message is made."""


class StepMeter(Protocol):
    """The metrics of steps."""

    def stepped(self, step: str, seconds: float) -> None:
        """Count a step that has ended."""


class NoMeter:
    """Counts nothing: for parts that run outside a router."""

    def stepped(self, step: str, seconds: float) -> None:
        """Do nothing."""


class Steps:
    """Tells the meter, and the trace of the call under way, of each step.

    `clock` returns seconds. Steps of microseconds are told once they are over (`begin`, `took`), which
    makes no object; those that wait are contexts (`step`).
    """

    __slots__ = ("_meter", "begin", "tracer")

    def __init__(
        self,
        meter: StepMeter,
        tracer: Tracer = NO_TRACER,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._meter = meter
        self.tracer = tracer
        self.begin = clock
        """Returns the time at which a step begins."""

    def took(self, step: Step, begun: float) -> float:
        """Tell of a step that ends now; return the time, at which the next may begin."""
        now = self.begin()
        self._meter.stepped(step, now - begun)
        if self.tracer.is_on:
            self.tracer.past(step, now - begun)
        return now

    @contextmanager
    def step(self, step: Step) -> Iterator[None]:
        """Tell of a step that lasts as long as the context."""
        begun = self.begin()
        try:
            if self.tracer.is_on:
                with self.tracer.span(step):
                    yield
            else:
                yield
        finally:
            self._meter.stepped(step, self.begin() - begun)


def _never() -> float:
    return 0.0


NO_STEPS = Steps(NoMeter(), clock=_never)
"""Times nothing."""
