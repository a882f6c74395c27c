"""The state of the router in one moment, as the live page shows it. No I/O here.

Names and units are documented in docs/reference/tracing-and-live-page.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warmpath.indexer.rank import Rank
from warmpath.process.loop import in_turns
from warmpath.router.diagnosis.attribution import Attribution, Row
from warmpath.router.load.table import LoadTable
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.readiness import Readiness

PODS_AT_ONCE = 32
"""Pods viewed before other tasks get a turn: about a millisecond's work."""


COUNTED = ("requests", "prompt_tokens", "captured_tokens", "average_tokens")
"""What is counted of a pod and, for the charts, of all."""

View = dict[str, Any]
"""A part of the page's data, as JSON."""


@dataclass(slots=True)
class Views:
    """Makes views of a router's parts. `clock` is the ingest's; + `wall_offset()`, it is Unix time."""

    pods: PodTable
    loads: LoadTable
    attribution: Attribution
    readiness: Readiness
    held: HeldPicks | None
    version: str
    host: str
    clock: Callable[[], float]
    wall_offset: Callable[[], float]
    begun: float
    """The router's start, by the clock."""

    def point(self) -> View:
        """Return the present values for the page's history."""
        total = self.attribution.total
        lags = (rank.lag_seconds for pod in self.pods for rank in pod.ranks)
        return {
            "at": self.clock() + self.wall_offset(),
            **{name: getattr(total, name) for name in (*COUNTED, "available_tokens")},
            "lag_seconds": max(lags, default=0.0),
            "queued": sum((self._queue() or {}).values()),
        }

    async def snapshot(self) -> View:
        """Return what the page shows; other tasks run between a few pods and the next."""
        rows = {(row.pod, row.model): row for row in self.attribution.rows()}
        pods = [
            self._pod(pod, rows.get((pod.id, pod.model)) or Row(pod.id, pod.model))
            async for pod in in_turns(list(self.pods), PODS_AT_ONCE)
        ]
        requires = self.readiness.requires
        return {
            "version": self.version,
            "host": self.host,
            "since": self.begun + self.wall_offset(),
            "ready": self.readiness.ready(),
            "conditions": [
                {
                    "name": name,
                    "required": requires(name),
                    "holds": one.holds,
                    "reason": one.reason,
                }
                for name, one in self.readiness.report().items()
            ],
            "pods": pods,
            "queue": self._queue(),
            "point": self.point(),
        }

    def _queue(self) -> dict[str, int] | None:
        return None if self.held is None else {**self.held.waiting()}

    def _pod(self, pod: Pod, row: Row) -> View:
        names = ("predicted_tokens", "delivered_tokens")
        return {
            **{name: getattr(pod, name) for name in ("id", "address", "model", "engine", "role")},
            "ready": pod.ready,
            "status": pod.withheld or pod.status.reason,
            "models": list(pod.status.models),
            "ranks": [self._rank(rank) for rank in pod.ranks],
            **{name: getattr(row, name) for name in (*COUNTED, *names)},
        }

    def _rank(self, rank: Rank) -> View:
        load = self.loads.load(rank.pod, rank.number, self.clock())
        return {
            "rank": rank.number,
            "trust": rank.trust.level,
            "trust_reason": rank.trust.reason,
            "trust_since": rank.trust.since + self.wall_offset(),
            "block_size": rank.layout.block_size,
            "tiers": {str(tier): blocks for tier, blocks in rank.blocks().items()},
            "used": rank.blocks_in_use(),
            "capacity": rank.capacity,
            "lag_seconds": rank.lag_seconds,
            "events": {kind: count for kind, count in rank.counts().items() if count},
            "running": load.in_flight,
            "waiting": load.waiting,
            "wait_seconds": load.wait,
        }
