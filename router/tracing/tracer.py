"""The seam of traces, and the tracer that makes none, which routers have unless asked for traces."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Protocol, Self

Attributes = Mapping[str, str | int | float | bool]
"""What a span tells: names, counts and times. No prompts, no token ids."""

Carrier = Iterable[tuple[str, str | bytes]]
"""Headers or metadata of a caller, with names in lower case."""


class CallSpan(Protocol):
    """The span of one call. Entered as a context it is the parent of the spans made in it, and ends."""

    @property
    def is_sampled(self) -> bool:
        """Whether it is told to anybody; otherwise it only carries the caller's decision on."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End the span; `ends_with` says before how its call ends."""

    def active(self) -> AbstractContextManager[None]:
        """Return a context in which it is the current span; it does not end with it."""

    def end(self) -> None:
        """End it, if it was not entered."""

    def ends_with(self, code: str) -> None:
        """Note the status code of gRPC with which the call ends."""

    def answers(self, status: int) -> None:
        """Note the status of HTTP with which the call ends."""

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""

    def event(self, name: str) -> None:
        """Note an event, which is now."""


class RequestSpan(Protocol):
    """The span of a request to another server over HTTP."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Those that tell the server of it."""

    def answered(self, status: int) -> None:
        """Note the answer's status."""


class Tracer(Protocol):
    """Makes spans. The current span is that of the running task or thread (`contextvars`)."""

    @property
    def is_on(self) -> bool:
        """Whether there are traces at all; if not, callers need not ask further."""

    def call(
        self, name: str, carrier: Carrier, attributes: Attributes, *, ago: float = 0.0
    ) -> CallSpan:
        """Return the span of a call that began `ago` seconds ago; the carrier may name its parent."""

    def message(self, *, is_told: bool) -> CallSpan:
        """Return the span of one message of the current call, a stream.

        One that is not told belongs to the stream's trace, and neither it nor its steps are sent.
        """

    def request(self, method: str, url: str) -> AbstractContextManager[RequestSpan]:
        """Return the context in which a server is asked over HTTP: a span of the current one."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """Return a context that is a span of the current one; nothing where that is not sampled."""

    def past(self, name: str, seconds: float) -> None:
        """Make a span of the current one that ends now and has lasted so long."""

    def note(self, attributes: Attributes) -> None:
        """Set attributes of the current span."""

    def ends_with(self, code: str) -> None:
        """Note the status code of gRPC with which the current span ends."""

    def trace_id(self) -> str:
        """Return the current trace's id, 32 hexadecimal digits; empty if it is not sampled."""

    def close(self) -> None:
        """Send the spans that are left, within a second or two. Blocks."""


class NoTracer:
    """Makes no spans."""

    is_on = False

    def call(
        self, name: str, carrier: Carrier, attributes: Attributes, *, ago: float = 0.0
    ) -> CallSpan:
        """Return a span that nobody sees."""
        del name, carrier, attributes, ago
        return NO_SPAN

    def message(self, *, is_told: bool) -> CallSpan:
        """Return a span that nobody sees."""
        del is_told
        return NO_SPAN

    def request(self, method: str, url: str) -> AbstractContextManager[RequestSpan]:
        """Return a context that does nothing, without headers."""
        del method, url
        return _NO_REQUEST

    def span(self, name: str) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        del name
        return _NOTHING

    def past(self, name: str, seconds: float) -> None:
        """Do nothing."""

    def note(self, attributes: Attributes) -> None:
        """Do nothing."""

    def ends_with(self, code: str) -> None:
        """Do nothing."""

    def trace_id(self) -> str:
        """Return no id."""
        return ""

    def close(self) -> None:
        """Do nothing."""


class _NoSpan:
    is_sampled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def active(self) -> AbstractContextManager[None]:
        return _NOTHING

    def end(self) -> None:
        pass

    def ends_with(self, code: str) -> None:
        pass

    def answers(self, status: int) -> None:
        pass

    def set(self, attributes: Attributes) -> None:
        pass

    def event(self, name: str) -> None:
        pass


class _NoRequestSpan:
    headers: Mapping[str, str] = MappingProxyType({})

    def answered(self, status: int) -> None:
        pass


_NOTHING = nullcontext()
_NO_REQUEST = nullcontext(_NoRequestSpan())
NO_SPAN = _NoSpan()
"""A span that nobody sees."""
NO_TRACER = NoTracer()
