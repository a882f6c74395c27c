"""A tracer whose spans a test looks at."""

import asyncio
import time
from dataclasses import dataclass, field

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from warmpath.router.tracing.otel_tracer import OtelTracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = ("traceparent", f"00-{TRACE}-{PARENT}-01")
NOT_SAMPLED = ("traceparent", f"00-{TRACE}-{PARENT}-00")


@dataclass
class Recorded:
    """The spans that have ended, and the tracer that made them."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        self.tracer = OtelTracer([SimpleSpanProcessor(self.exporter)], "1.2", time.time_ns)

    async def taken_with(self, name: str) -> dict[str, ReadableSpan]:
        """Return as `taken`, once a span with this name has ended: an answer may come before its end."""
        while name not in {span.name for span in self.exporter.get_finished_spans()}:
            await asyncio.sleep(0.001)
        return self.taken()

    def taken(self) -> dict[str, ReadableSpan]:
        """Return the spans that have ended since the last call, by name."""
        spans = {span.name: span for span in self.exporter.get_finished_spans()}
        self.exporter.clear()
        return spans


def parent(span: ReadableSpan) -> str:
    """Return the id of a span's parent, in hexadecimal digits."""
    return f"{span.parent.span_id:016x}" if span.parent else ""


def trace(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"
