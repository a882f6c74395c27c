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

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""

    def event(self, name: str) -> None:
        """Note an event, which is now."""


class Tracer(Protocol):
    """Makes spans. The current span is that of the running task or thread (`contextvars`)."""

    @property
    def is_on(self) -> bool:
        """Whether there are traces at all; if not, callers need not ask further."""

    def call(
        self, name: str, carrier: Carrier, attributes: Attributes, *, ago: float = 0.0
    ) -> CallSpan:
        """Return the span of a call that began `ago` seconds ago; the carrier may name its parent."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """Return a context that is a span of the current one; nothing where that is not sampled."""

    def past(self, name: str, seconds: float) -> None:
        """Make a span of the current one that ends now and has lasted so long."""

    def note(self, attributes: Attributes) -> None:
        """Set attributes of the current span."""

    def trace_id(self) -> str:
        """Return the current trace's id, 32 hexadecimal digits; empty if it is not sampled."""

    def carried(self) -> Mapping[str, str]:
        """Return the headers that tell a server, which is asked for the current span, of it."""

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
        return _NO_SPAN

    def span(self, name: str) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        del name
        return _NOTHING

    def past(self, name: str, seconds: float) -> None:
        """Do nothing."""

    def note(self, attributes: Attributes) -> None:
        """Do nothing."""

    def trace_id(self) -> str:
        """Return no id."""
        return ""

    def carried(self) -> Mapping[str, str]:
        """Return no headers."""
        return _NO_HEADERS

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

    def set(self, attributes: Attributes) -> None:
        pass

    def event(self, name: str) -> None:
        pass


_NOTHING = nullcontext()
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NO_SPAN = _NoSpan()
NO_TRACER = NoTracer()
