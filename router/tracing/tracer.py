"""The seam of traces: tracers and spans whose base classes do nothing, for routers without traces."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import ClassVar, Self

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
