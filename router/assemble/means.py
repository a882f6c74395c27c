"""What all parts of a router use: configuration, readiness, who may enter, metrics, traces."""

from dataclasses import dataclass
from pathlib import Path

from warmpath.router.access.entrance import Entrance
from warmpath.router.config.schema import Config
from warmpath.router.metrics.calls import Metrics
from warmpath.router.readiness import Readiness
from warmpath.router.tracing.steps import Steps
from warmpath.router.tracing.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Means:
    """Objects that every part of the router gets: configuration, readiness, metrics, tracing."""

    config: Config
    folder: Path
    """Where the configuration's relative paths begin."""
    readiness: Readiness
    enter: Entrance
    metrics: Metrics
    steps: Steps
    tracer: Tracer
