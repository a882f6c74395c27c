"""Whether OpenTelemetry's standard variables ask for traces, and the tracer that makes them."""

import logging
import re
import time
from collections.abc import Mapping
from importlib.metadata import entry_points

from warmpath.router.tracing.steps import NO_TRACER, Tracer

log = logging.getLogger(__name__)

DISABLED = "OTEL_SDK_DISABLED"
EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
ASKING = (*ENDPOINTS, EXPORTER)
"""Any of these, if it is set, asks for traces."""
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OTLP = {
    "http/json": "otlp_json_http",
    "http/protobuf": "otlp_proto_http",
    "grpc": "otlp_proto_grpc",
}
"""By protocol, the name under which the package of its exporter registers that."""
URL = re.compile(r"\s*https?://[^/\s]", re.IGNORECASE)
"""The beginning of the URLs that exporters over HTTP take; with others they fail at each export."""


def tracer_of(environ: Mapping[str, str], version: str) -> Tracer:
    """Return the tracer that the variables ask for.

    Where it cannot be made, the log says so with what to do, and there are no traces: a router serves
    without them. `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` ask for none.
    """
    asking = asked_by(environ)
    if not asking:
        return NO_TRACER
    if wrong := wrong_endpoint(environ):
        log.warning("no traces: %s is no URL such as http://collector:4318", wrong)
        return NO_TRACER
    try:
        # Nothing is loaded where nobody asks for traces.
        from warmpath.router.tracing.otel_tracer import OtelTracer, processors_of  # noqa: PLC0415
    except ImportError as error:
        text = (
            "no traces, though %s is set: %s is not installed; pip install 'warmpath-router[otel]'"
        )
        log.warning(text, asking, error.name)
        return NO_TRACER
    known = entry_points(group="opentelemetry_traces_exporter")
    asked = exporters(environ)
    if missing := [name for name in asked if name not in known.names]:
        log.warning(
            "no traces, though %s is set: no package with the exporter %s is installed; "
            "the extra warmpath-router[otel] has that of OTEL_EXPORTER_OTLP_PROTOCOL=http/json",
            *(asking, missing[0]),
        )
        return NO_TRACER
    try:
        tracer = OtelTracer(processors_of([known[name] for name in asked]), version, time.time_ns)
    except Exception as error:  # noqa: BLE001  that of any exporter
        log.warning("no traces, though %s is set: %s: %s", asking, type(error).__name__, error)
        return NO_TRACER
    log.info("traces are sent, since %s is set", asking)
    return tracer


def asked_by(environ: Mapping[str, str]) -> str:
    """Return the variable that asks for traces; empty if none does."""
    if environ.get(DISABLED, "").strip().lower() == "true":
        return ""
    if environ.get(EXPORTER, "").strip().lower() == "none":
        return ""
    return next((name for name in ASKING if environ.get(name)), "")


def wrong_endpoint(environ: Mapping[str, str]) -> str:
    """Return the variable whose value the exporters cannot use; empty if there is none."""
    named = next((name for name in ENDPOINTS if environ.get(name)), "")
    # gRPC's exporter takes host:port, too.
    is_http = {OTLP["http/json"], OTLP["http/protobuf"]}.intersection(exporters(environ))
    return named if named and is_http and not URL.match(environ[named]) else ""


def exporters(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the exporters that the variables name."""
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), "http/json")
    named = environ.get(EXPORTER) or "otlp"
    # A protocol of no known exporter is told by its own name.
    of_otlp = OTLP.get(protocol.strip().lower(), protocol)
    return [of_otlp if name.strip() == "otlp" else name.strip() for name in named.split(",")]
