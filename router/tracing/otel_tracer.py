"""The tracer of OpenTelemetry's SDK. No other module imports that; none does where nobody asks.

The SDK reads its standard variables itself: sampler, resource, limits, batches, propagators, and what
its exporters need (endpoint, headers, certificates, time-out).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import entry_points
from typing import Self
from urllib.parse import urlsplit

from opentelemetry import propagate
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
    use_span,
)

from warmpath.router.tracing.tracer import (
    NO_SPAN,
    Attributes,
    CallSpan,
    Carrier,
    RequestSpan,
    Tracer,
)

CLOSE_SECONDS = 2.0
"""Longest wait for the collector at the router's end."""
NANOSECONDS = 1_000_000_000
FAULTS = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)
"""Codes that mean that a server failed (conventions for gRPC's spans); others are its callers' fault."""

OWN_FAULTS, OTHERS_FAULTS = 500, 400
"""The lowest statuses of HTTP that mean that a call failed, to its server and to its caller
(conventions for HTTP's spans)."""


class NoExporterError(Exception):
    """No installed package has an exporter of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def processors_of(exporters: Sequence[str]) -> list[SpanProcessor]:
    """Return what sends spans, by the names of installed exporters. Raises NoExporterError.

    Raises whatever an exporter raises whose variables it cannot use.
    """
    made: list[SpanProcessor] = []
    for name in exporters:
        found = entry_points(group="opentelemetry_traces_exporter", name=name)
        if not found:
            raise NoExporterError(name)
        made.append(BatchSpanProcessor(next(iter(found)).load()()))
    return made


def otel_tracer(
    processors: Sequence[SpanProcessor], version: str, clock: Callable[[], int]
) -> Tracer:
    """Return a tracer over OpenTelemetry's SDK. `clock` returns nanoseconds since the Unix epoch."""
    return _OtelTracer(processors, version, clock)


class _OtelTracer(Tracer):
    is_on = True

    def __init__(
        self, processors: Sequence[SpanProcessor], version: str, clock: Callable[[], int]
    ) -> None:
        self._provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        for processor in processors:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("warmpath", version)
        self._clock = clock
        self._fields = frozenset(map(str.lower, propagate.get_global_textmap().fields))

    def call(
        self, name: str, carrier: Carrier, attributes: Attributes, *, ago: float = 0.0
    ) -> CallSpan:
        # Not the current context: a new task has that of whoever made it.
        parent, fields = Context(), self._fields
        given = {key: value for key, value in carrier if key in fields and isinstance(value, str)}
        if given:
            parent = propagate.extract(given, parent)
        begun = self._clock() - int(ago * NANOSECONDS)
        span = self._tracer.start_span(
            name, parent, SpanKind.SERVER, attributes, start_time=begun, record_exception=False
        )
        return _OtelCallSpan(span, set_span_in_context(span, parent))

    def message(self, *, is_told: bool) -> CallSpan:
        stream = get_current_span()
        if not stream.is_recording():
            return NO_SPAN
        span = (
            self._tracer.start_span("message", record_exception=False)
            if is_told
            else NonRecordingSpan(stream.get_span_context())
        )
        return _OtelCallSpan(span, set_span_in_context(span))

    @contextmanager
    def request(self, method: str, url: str) -> Iterator[RequestSpan]:
        if not get_current_span().is_recording():
            yield _OtelRequestSpan(get_current_span())
            return
        span = self._tracer.start_span(
            f"{method} {urlsplit(url).path}", kind=SpanKind.CLIENT, attributes=_asked(method, url)
        )
        with _current(span):
            try:
                yield _OtelRequestSpan(span)
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                _fail(span, error)
                raise
            finally:
                span.end()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        if not get_current_span().is_recording():
            yield
            return
        with _current(self._tracer.start_span(name)) as span:
            try:
                yield
            except Exception as error:
                _fail(span, error)
                raise
            finally:
                span.end()

    def past(self, name: str, seconds: float) -> None:
        if get_current_span().is_recording():
            now = self._clock()
            begun = now - int(seconds * NANOSECONDS)
            self._tracer.start_span(name, start_time=begun).end(now)

    def note(self, attributes: Attributes) -> None:
        get_current_span().set_attributes(attributes)

    def ends_with(self, code: str) -> None:
        _end_with(get_current_span(), code)

    def trace_id(self) -> str:
        context = get_current_span().get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""

    def close(self) -> None:
        # A daemon, since the SDK itself waits for a collector that is away for half a minute.
        closing = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


class _OtelCallSpan(CallSpan):
    def __init__(self, span: Span, context: Context) -> None:
        self._span = span
        self._context = context
        self._active: AbstractContextManager[object] | None = None

    @property
    def is_sampled(self) -> bool:
        return bool(self._span.is_recording())

    def __enter__(self) -> Self:
        self._active = self.active()
        self._active.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._active is not None
        self._active.__exit__(None, None, None)
        self._span.end()

    @contextmanager
    def active(self) -> Iterator[None]:
        token = attach(self._context)
        try:
            yield
        finally:
            detach(token)

    def end(self) -> None:
        self._span.end()

    def ends_with(self, code: str) -> None:
        _end_with(self._span, code)

    def answers(self, status: int) -> None:
        _answer_with(self._span, status, OWN_FAULTS)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str) -> None:
        self._span.add_event(name)


class _OtelRequestSpan(RequestSpan):
    def __init__(self, span: Span) -> None:
        self._span = span
        headers: dict[str, str] = {}
        propagate.inject(headers)
        self.headers = headers

    def answered(self, status: int) -> None:
        _answer_with(self._span, status, OTHERS_FAULTS)


def _asked(method: str, url: str) -> Attributes:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return {
        "http.request.method": method,
        "url.full": bare,
        "server.address": host,
        "server.port": port,
    }


def _end_with(span: Span, code: str) -> None:
    span.set_attribute("rpc.response.status_code", code)
    if code in FAULTS:
        span.set_status(Status(StatusCode.ERROR, code))


def _answer_with(span: Span, status: int, faults: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= faults:
        span.set_attribute("error.type", str(status))
        span.set_status(Status(StatusCode.ERROR))


def _current(span: Span) -> AbstractContextManager[Span]:
    # The texts of errors may quote a caller's names, so no span has them.
    current: AbstractContextManager[Span] = use_span(
        span, record_exception=False, set_status_on_exception=False
    )
    return current


def _fail(span: Span, error: Exception) -> None:
    span.set_status(Status(StatusCode.ERROR, type(error).__name__))


def _resource(version: str) -> Resource:
    """Return what names this service: by the variables, and where they do not, `warmpath`."""
    resource = Resource({SERVICE_VERSION: version}).merge(Resource.create())
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "warmpath"}))
    return resource
