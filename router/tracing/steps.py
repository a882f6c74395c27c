"""The steps of a call: each is timed for the metrics, and is a span where the call is traced.

The base classes of tracers and spans do nothing, for routers without traces.

`request_id_of` is the id that a caller or gateway gave to a request, by which logs elsewhere name it.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType, TracebackType
from typing import ClassVar, Final, Self

Attributes = Mapping[str, str | int | float | bool]
"""A span's attributes, by name: names, counts and times. No prompts, no token ids."""

Carrier = Iterable[tuple[str, str | bytes]]
"""Headers or metadata of a caller, with names in lower case."""


class Span:
    """A span; this one nobody sees. Entered as a context it is the parent of the spans made in it."""

    headers: Mapping[str, str] = MappingProxyType({})
    """The headers that tell another server of this span, in a request to it over HTTP."""

    @property
    def is_sampled(self) -> bool:
        """Whether it is exported; otherwise it only carries the caller's decision on."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def active(self) -> AbstractContextManager[None]:
        """Return a context in which this span is the current one; the span goes on after it."""
        return _NOTHING

    def end(self) -> None:
        """End the span, if it was not entered as a context."""

    def ends_with(self, code: str) -> None:
        """Note the status code of gRPC with which the call ends."""

    def answered(self, status: int) -> None:
        """Note the status of HTTP with which the call, or the request to another server, ends."""

    def set(self, attributes: Attributes) -> None:
        """Set attributes of this span."""

    def event(self, name: str) -> None:
        """Add an event with the present time."""


class Tracer:
    """Makes spans. The current span is that of the running task or thread (`contextvars`)."""

    is_on: ClassVar[bool] = False
    """Whether there are traces at all; if not, callers need not ask further."""

    def call(
        self, name: str, carrier: Carrier, attributes: Attributes, *, ago: float = 0.0
    ) -> Span:
        """Return the span of a call that began `ago` seconds ago; the carrier may name its parent."""
        del name, carrier, attributes, ago
        return NO_SPAN

    def message(self, *, is_told: bool) -> Span:
        """Return the span of one message of the current call, a stream.

        One that is not told belongs to the stream's trace, and neither it nor its steps are sent.
        """
        del is_told
        return NO_SPAN

    def request(self, method: str, url: str) -> AbstractContextManager[Span]:
        """Return the context in which a server is asked over HTTP: a span of the current one."""
        del method, url
        return NO_SPAN

    def span(self, name: str) -> AbstractContextManager[None]:
        """Return a context that is a child span of the current one, if that one is sampled."""
        del name
        return _NOTHING

    def past(self, name: str, seconds: float) -> None:
        """Make a child of the current span that ends now and has lasted `seconds`."""

    def note(self, attributes: Attributes) -> None:
        """Set attributes of the current span."""

    def ends_with(self, code: str) -> None:
        """Note the status code of gRPC with which the current span ends."""

    def trace_id(self) -> str:
        """Return the current trace's id, 32 hexadecimal digits; empty if it is not sampled."""
        return ""

    def close(self) -> None:
        """Send the spans that are left, within a second or two. Blocks."""


_NOTHING = nullcontext()
NO_SPAN = Span()
"""A span that nobody sees."""
NO_TRACER = Tracer()


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
