"""The tracer of OpenTelemetry's SDK. No other module imports that; none does where nobody asks.

The SDK reads its standard variables itself: sampler, resource, limits, batches, propagators, and what
its exporters need (endpoint, headers, certificates, time-out).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import Self
from urllib.parse import urlsplit

from opentelemetry import propagate
from opentelemetry import trace as otel
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
    use_span,
)

from warmpath.router.tracing.steps import NO_SPAN, Attributes, Carrier, Span, Tracer

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


def processors_of(exporters: Sequence[EntryPoint]) -> list[SpanProcessor]:
    """Return the processors that send spans. Raises any error of an exporter, by bad variables."""
    return [BatchSpanProcessor(exporter.load()()) for exporter in exporters]


class OtelTracer(Tracer):
    """A tracer over OpenTelemetry's SDK. `clock` returns nanoseconds since the Unix epoch."""

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
    ) -> Span:
        # Not the current context: a new task has that of whoever made it.
        parent, fields = Context(), self._fields
        given = {key: value for key, value in carrier if key in fields and isinstance(value, str)}
        if given:
            parent = propagate.extract(given, parent)
        begun = self._clock() - int(ago * NANOSECONDS)
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=begun)
        return _OtelSpan(span, parent)

    def message(self, *, is_told: bool) -> Span:
        stream = get_current_span()
        if not stream.is_recording():
            return NO_SPAN
        if is_told:
            return _OtelSpan(self._tracer.start_span("message"))
        return _OtelSpan(NonRecordingSpan(stream.get_span_context()))

    @contextmanager
    def request(self, method: str, url: str) -> Iterator[Span]:
        name = f"{method} {urlsplit(url).path}"
        with self._child(name, SpanKind.CLIENT, _asked(method, url)) as span:
            told = _OtelSpan(span, faults=OTHERS_FAULTS)
            headers: dict[str, str] = {}
            propagate.inject(headers)
            told.headers = headers
            try:
                yield told
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        with self._child(name):
            yield

    @contextmanager
    def _child(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> Iterator[otel.Span]:
        """Make a child of the current span the current one; if that is not sampled, it stays so."""
        current = get_current_span()
        if not current.is_recording():
            yield current
            return
        made = self._tracer.start_span(name, kind=kind, attributes=attributes)
        # The texts of errors may quote a caller's names, so no span has them.
        with use_span(
            made, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield made
            except Exception as error:
                made.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def past(self, name: str, seconds: float) -> None:
        if get_current_span().is_recording():
            now = self._clock()
            begun = now - int(seconds * NANOSECONDS)
            self._tracer.start_span(name, start_time=begun).end(now)

    def note(self, attributes: Attributes) -> None:
        get_current_span().set_attributes(attributes)

    def ends_with(self, code: str) -> None:
        _OtelSpan(get_current_span()).ends_with(code)

    def trace_id(self) -> str:
        context = get_current_span().get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""

    def close(self) -> None:
        # A daemon, since the SDK itself waits for a collector that is away for half a minute.
        closing = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


class _OtelSpan(Span):
    def __init__(
        self, span: otel.Span, parent: Context | None = None, *, faults: int = OWN_FAULTS
    ) -> None:
        self._span = span
        self._context = set_span_in_context(span, parent)
        self._faults = faults

    @property
    def is_sampled(self) -> bool:
        return bool(self._span.is_recording())

    def __enter__(self) -> Self:
        self._token = attach(self._context)
        return self

    def __exit__(self, *_: object) -> None:
        detach(self._token)
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
        self._span.set_attribute("rpc.response.status_code", code)
        if code in FAULTS:
            self._span.set_status(Status(StatusCode.ERROR, code))

    def answered(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        if status >= self._faults:
            self._span.set_attribute("error.type", str(status))
            self._span.set_status(Status(StatusCode.ERROR))

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def event(self, name: str) -> None:
        self._span.add_event(name)


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


def _resource(version: str) -> Resource:
    """Return the resource that names this service: by the variables, or else `warmpath`."""
    resource = Resource({SERVICE_VERSION: version}).merge(Resource.create())
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "warmpath"}))
    return resource
