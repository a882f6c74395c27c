"""The state of the router in one moment, as the live page shows it. No I/O here.

Names and units are documented in docs/reference/tracing-and-live-page.md.
"""

from collections.abc import Callable, Mapping

import msgspec

from warmpath.indexer.rank import Rank
from warmpath.process.loop import in_turns
from warmpath.router.diagnosis.attribution import Attribution, Row
from warmpath.router.load.table import LoadTable
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.readiness import Readiness

PODS_AT_ONCE = 32
"""Pods viewed before other tasks get a turn: about a millisecond's work."""


class RankView(msgspec.Struct, frozen=True):
    """One rank of a pod."""

    rank: int
    trust: str
    trust_reason: str
    trust_since: float
    """Seconds since the Unix epoch."""
    block_size: int
    tiers: dict[str, int]
    """Distinct blocks by tier."""
    used: int | None
    """Blocks of the fastest tier that are taken; None if that is not known."""
    capacity: int
    """All blocks of the fastest tier; 0 if that is not known."""
    lag_seconds: float
    events: dict[str, int]
    """Counts by kind, without zeros."""
    running: int
    """Requests that are not finished, waiting ones included."""
    waiting: int
    """Requests without their first token."""
    wait_seconds: float
    """Booked prefill that is not computed yet."""


class PodView(msgspec.Struct, frozen=True):
    """One pod."""

    id: str
    address: str
    model: str
    engine: str
    role: str
    ready: bool
    status: str
    models: list[str]
    ranks: list[RankView]
    requests: int
    prompt_tokens: int
    captured_tokens: int
    average_tokens: int
    predicted_tokens: int
    delivered_tokens: int


class ConditionView(msgspec.Struct, frozen=True):
    """One condition of the router's readiness."""

    name: str
    required: bool
    holds: bool
    reason: str


class Point(msgspec.Struct, frozen=True):
    """A point of the charts. Counts grow from the router's start; the rest is the state at that time."""

    at: float
    """Seconds since the Unix epoch."""
    requests: int
    prompt_tokens: int
    available_tokens: int
    captured_tokens: int
    average_tokens: int
    lag_seconds: float
    """Of the rank whose events lag most."""
    queued: int
    """Picks that wait in the router's queue."""


class Snapshot(msgspec.Struct, frozen=True):
    """All that the page shows, decisions and findings aside."""

    version: str
    host: str
    """The name of the router's machine, in Kubernetes of its pod."""
    since: float
    """The router's start, in seconds since the Unix epoch."""
    ready: bool
    conditions: list[ConditionView]
    pods: list[PodView]
    queue: dict[str, int] | None
    """Waiting picks by class; None if the queue is off."""
    point: Point


class Views:
    """Makes views of a router's parts. `clock` is the ingest's; + `wall_offset()`, it is Unix time."""

    def __init__(
        self,
        pods: PodTable,
        loads: LoadTable,
        attribution: Attribution,
        readiness: Readiness,
        *,
        held: HeldPicks | None,
        version: str,
        host: str,
        clock: Callable[[], float],
        wall_offset: Callable[[], float],
    ) -> None:
        self._pods = pods
        self._loads = loads
        self._attribution = attribution
        self._readiness = readiness
        self._held = held
        self._version = version
        self._host = host
        self._clock = clock
        self.wall_offset = wall_offset
        self._begun = clock()

    def point(self) -> Point:
        """Return the present values for the page's history."""
        total = self._attribution.total
        lags = (rank.lag_seconds for pod in self._pods for rank in pod.ranks)
        queue = self._queue()
        return Point(
            at=self._clock() + self.wall_offset(),
            requests=total.requests,
            prompt_tokens=total.prompt_tokens,
            available_tokens=total.available_tokens,
            captured_tokens=total.captured_tokens,
            average_tokens=total.average_tokens,
            lag_seconds=max(lags, default=0.0),
            queued=sum(queue.values()) if queue else 0,
        )

    async def snapshot(self) -> Snapshot:
        """Return the present state; other tasks run between a few pods and the next."""
        rows = {(row.pod, row.model): row for row in self._attribution.rows()}
        pods = [
            self._pod(pod, rows.get((pod.id, pod.model)))
            async for pod in in_turns(list(self._pods), PODS_AT_ONCE)
        ]
        requires = self._readiness.requires
        return Snapshot(
            version=self._version,
            host=self._host,
            since=self._begun + self.wall_offset(),
            ready=self._readiness.ready(),
            conditions=[
                ConditionView(name, requires(name), one.holds, one.reason)
                for name, one in self._readiness.report().items()
            ],
            pods=pods,
            queue=self._queue(),
            point=self.point(),
        )

    def _queue(self) -> dict[str, int] | None:
        return None if self._held is None else {**self._held.waiting()}

    def _pod(self, pod: Pod, row: Row | None) -> PodView:
        counted = row or Row(pod.id, pod.model)
        return PodView(
            id=pod.id,
            address=pod.address,
            model=pod.model,
            engine=pod.engine,
            role=pod.role,
            ready=pod.ready,
            status=pod.withheld or pod.status.reason,
            models=list(pod.status.models),
            ranks=[self._rank(rank) for rank in pod.ranks],
            requests=counted.requests,
            prompt_tokens=counted.prompt_tokens,
            captured_tokens=counted.captured_tokens,
            average_tokens=counted.average_tokens,
            predicted_tokens=counted.predicted_tokens,
            delivered_tokens=counted.delivered_tokens,
        )

    def _rank(self, rank: Rank) -> RankView:
        load = self._loads.load(rank.pod, rank.number, self._clock())
        return RankView(
            rank=rank.number,
            trust=rank.trust.level,
            trust_reason=rank.trust.reason,
            trust_since=rank.trust.since + self.wall_offset(),
            block_size=rank.layout.block_size,
            tiers={str(tier): blocks for tier, blocks in rank.blocks().items()},
            used=rank.blocks_in_use(),
            capacity=rank.capacity,
            lag_seconds=rank.lag_seconds,
            events=_without_zeros(rank.counts()),
            running=load.in_flight,
            waiting=load.waiting,
            wait_seconds=load.wait,
        )


def _without_zeros(counts: Mapping[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in counts.items() if count}
