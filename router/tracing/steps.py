"""The steps of a call: each is timed for the metrics, and is a span where the call is traced.

`request_id_of` is the id that a caller or gateway gave to a request, by which logs elsewhere name it.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from warmpath.router.tracing.tracer import NO_TRACER, Carrier, Tracer


class Step:
    """The steps, as metrics and spans name them (docs/reference/tracing-and-live-page.md).

    Not an enum, whose members take longer to look up than a step takes to count.
    """

    BODY: Final = "body"
    """An HTTP body becomes a request: a gateway's only."""
    READ: Final = "read"
    """A prompt is parsed and checked; packed token ids take no time, and are not counted."""
    TOKENISE: Final = "tokenise"
    """A text or chat becomes tokens, with all waits for the tokenizer."""
    LOOK_UP: Final = "look-up"
    """Redis is asked for the prompt's blocks: shared mode only."""
    MATCH: Final = "match"
    """The tokens of the prompt that each rank holds are counted: a Score's only."""
    QUEUE: Final = "queue"
    """A pick waits for a pod with room, where configured."""
    CHOOSE: Final = "choose"
    """The ranks' holdings and costs are computed, and a policy orders them; again at each look of the
    queue at a pick that waits."""
    REPLY: Final = "reply"
    """The answer's message is made."""


class Steps:
    """Tells the metrics, by `stepped`, and the trace of the call under way, of each step.

    `clock` returns seconds. Steps of microseconds are told once they are over (`begin`, `took`), which
    makes no object; those that wait are contexts (`step`).
    """

    __slots__ = ("_is_traced", "begin", "stepped", "tracer")

    def __init__(
        self,
        stepped: Callable[[str, float], None],
        tracer: Tracer = NO_TRACER,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.stepped = stepped
        """Tells the metrics alone of a step, and its seconds."""
        self._is_traced = tracer.is_on
        self.tracer = tracer
        self.begin = clock
        """Returns the time at which a step begins."""

    def took(self, step: str, begun: float) -> None:
        """Tell of a step that ends now."""
        seconds = self.begin() - begun
        self.stepped(step, seconds)
        if self._is_traced:
            self.tracer.past(step, seconds)

    def step(self, step: str) -> "Timed":
        return Timed(self, step)


class Timed:
    """The context of a step; a generator would take several times as long."""

    __slots__ = ("_begun", "_span", "_step", "_steps")

    def __init__(self, steps: Steps, step: str) -> None:
        self._steps = steps
        self._step = step
        self._span = steps.tracer.span(step) if steps.tracer.is_on else None

    def __enter__(self) -> None:
        self._begun = self._steps.begin()
        if self._span is not None:
            self._span.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._span is not None:
            self._span.__exit__(kind, error, where)
        self._steps.stepped(self._step, self._steps.begin() - self._begun)


NO_STEPS = Steps(lambda *_: None, clock=lambda: 0.0)
"""Times nothing: for parts that run outside a router."""

HEADER = "x-request-id"
"""Envoy's header with a request's id, which most proxies and frameworks share; in lower case."""
MOST_CHARS = 128


def request_id_of(carrier: Carrier) -> str:
    """Return the id in headers or metadata, its beginning if it is long; empty if there is none."""
    for name, value in carrier:
        if name == HEADER and isinstance(value, str):
            return value[:MOST_CHARS]
    return ""
