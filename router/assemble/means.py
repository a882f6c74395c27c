"""What all parts of a router use: configuration, readiness, who may enter, metrics, traces."""

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmpath.indexer.compiled.memory import File
from warmpath.process.tasks import Work, kept
from warmpath.router.access.entrance import Entrance
from warmpath.router.config.schema import Config
from warmpath.router.metrics.calls import Metrics
from warmpath.router.peers.siblings import Siblings
from warmpath.router.readiness import Readiness
from warmpath.router.tracing.steps import Steps, Tracer


@dataclass(frozen=True, slots=True)
class ShadowMode:
    """Somebody else's gateway decides where requests go."""

    log: Path | None = None
    """Its access log, which is followed; None: the gateway shows or reports its requests."""


@dataclass(frozen=True, slots=True)
class OneOfSeveral:
    """What one of several processes has from their parent."""

    siblings: int
    """The descriptor of its socket, for the bookings (`router.peers.siblings`)."""
    memory: int
    """The descriptor of the file in which all have the index."""
    follows: bool
    """Whether it is the one that follows the pods' events."""


@dataclass(frozen=True, slots=True)
class Means:
    """Objects that every part of the router gets: configuration, readiness, metrics, tracing."""

    stack: AsyncExitStack
    """Closes the parts, the last one first."""
    config: Config
    folder: Path
    """Where the configuration's relative paths begin."""
    readiness: Readiness
    enter: Entrance
    metrics: Metrics
    steps: Steps
    tracer: Tracer
    shadow: ShadowMode | None = None
    """How another gateway decides where requests go; None: picks decide."""
    siblings: Siblings | None = None
    """The other processes of this router, through their parent; None: there are none."""
    memory: File | None = None
    """Where all processes have the index; None: this one has it alone."""
    follows: bool = True
    """Whether this process follows the pods' events, and not another one."""

    def keep(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work until the router ends (`process.tasks.Work`)."""
        self.stack.callback(kept(Work(name, run)).cancel)
