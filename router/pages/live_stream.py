"""The state of the router as the live page shows it, and the stream of server-sent events that it reads.

    event: history    a list of points, once
    event: snapshot   the state of the router, every two seconds
    event: decisions  the last decisions, newest first, after each snapshot

Names and units are documented in docs/reference/tracing-and-live-page.md. Source of the format: the HTML
standard, "Server-sent events".
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from warmpath.indexer.rank import Rank
from warmpath.process.http_listener import lasting
from warmpath.process.listener import Places, State
from warmpath.process.loop import in_turns
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.diagnosis.attribution import Attribution, Row
from warmpath.router.diagnosis.blindness import Blindness
from warmpath.router.diagnosis.decisions import decision_view
from warmpath.router.load.table import LoadTable
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.readiness import Readiness

PODS_AT_ONCE = 32
"""Pods viewed before other tasks get a turn: about a millisecond's work."""


COUNTED = ("requests", "prompt_tokens", "captured_tokens", "average_tokens")
"""The counters that are shown of each pod and, as charts, summed over all pods."""

OF_CLIENTS = (
    *("tenant", "model", *COUNTED, "saved_seconds", "predicted_tokens", "delivered_tokens"),
)

View = dict[str, Any]
"""A part of the page's data, as JSON."""


BLIND = "Blind:"
TITLES = {"no-events": "Approximate:", "gap": "Mispredicted:", "spoiled": "Spoiled cache:"}
"""By the kind of a lasting finding about a model: how far picks can be trusted."""


@dataclass(slots=True)
class Views:
    """Makes views of a router's parts. A time of the ingest's `clock` + `wall_offset()` is Unix time."""

    pods: PodTable
    loads: LoadTable
    attribution: Attribution
    readiness: Readiness
    blindness: Blindness
    held: HeldPicks | None
    version: str
    host: str
    clock: Callable[[], float]
    wall_offset: Callable[[], float]
    begun: float
    """The router's start, by `clock`."""
    is_shadow: bool = False
    """Whether another gateway decides where requests go."""
    log: Callable[[], View | None] = lambda: None
    """Returns the state of the followed access log; None without one."""

    def point(self) -> View:
        total = self.attribution.total
        lags = (rank.lag_seconds for pod in self.pods for rank in pod.ranks)
        return {
            "at": self.clock() + self.wall_offset(),
            **{name: getattr(total, name) for name in (*COUNTED, "available_tokens")},
            "lag_seconds": max(lags, default=0.0),
            "queued": sum((self._queue() or {}).values()),
        }

    async def snapshot(self) -> View:
        """Return the data that the page shows; other tasks run between a few pods and the next."""
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
            "notices": self._notices(),
            "conditions": [
                {"name": name, "required": requires(name), "holds": one.holds, "reason": one.reason}
                for name, one in self.readiness.report().items()
            ],
            "pods": pods,
            "clients": [
                {"client": one.name, **{name: getattr(one, name) for name in OF_CLIENTS}}
                for one in self.attribution.clients
            ],
            "shadow": self._shadow(),
            "queue": self._queue(),
            "point": self.point(),
        }

    def _notices(self) -> list[View]:
        """Return what the page says above all else, the gravest first.

        `kind` is a class of page.css: `down`, `degraded` or `exact`. `title` is in words what the colour
        says, `text` one sentence with its commands between backticks.
        """
        unready = [
            {"kind": "down", "title": "Not ready:", "text": f"{name}: {one.reason}"}
            for name, one in self.readiness.report().items()
            if not one.holds and self.readiness.requires(name)
        ]
        blind = [
            {
                "kind": "degraded",
                "title": TITLES.get(one.kind, BLIND),
                "text": f"model {one.model}: {one.text}",
            }
            for one in self.blindness.spots()
        ]
        return [*unready, *blind]

    def _shadow(self) -> View | None:
        models = [
            {name: getattr(row, name) for name in pb.Shadow.DESCRIPTOR.fields_by_name}
            for row in self.attribution.shadow.rows()
        ]
        if not self.is_shadow and not models:
            return None
        return {"decides": not self.is_shadow, "models": models, "log": self.log()}

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
            "rank": rank.number, "trust": rank.trust.level, "trust_reason": rank.trust.reason,
            "trust_since": rank.trust.since + self.wall_offset(),
            "block_size": rank.layout.block_size,
            "tiers": {str(tier): blocks for tier, blocks in rank.blocks().items()},
            "used": rank.blocks_in_use(), "capacity": rank.capacity,
            "lag_seconds": rank.lag_seconds,
            "events": {kind: count for kind, count in rank.counts().items() if count},
            "running": load.in_flight, "waiting": load.waiting, "wait_seconds": load.wait,
        }  # fmt: skip


PAUSE = 5.0
"""Seconds between two points of the history."""
MOST = 720
"""Most points of the history that are kept: an hour."""


LIVE = "/api/v1/live"
MOST_VIEWERS = 16
FRAME_SECONDS = 2.0
"""Seconds between two snapshots."""
WRITE_SECONDS = 10.0
"""Longest wait for a browser to read."""
DECISIONS = 40
"""Most decisions in an event `decisions`."""

ListDecisions = Callable[[pb.ListDecisionsRequest], Awaitable[pb.ListDecisionsResponse]]


class LiveStream:
    """Sends the same frames to all viewers; a frame is made once, and none while nobody watches."""

    def __init__(self, views: Views, decisions: ListDecisions, most_points: int = MOST) -> None:
        self._views = views
        self._decisions = decisions
        self._points: deque[tuple[float, View]] = deque(maxlen=most_points)
        """The history, oldest first: points, each with the wall offset in its time."""
        self._places = Places(MOST_VIEWERS)
        self._ending = asyncio.Event()
        self._frame = b""
        self._made_at = -FRAME_SECONDS
        self._making = asyncio.Lock()

    async def remember(self) -> None:
        while True:
            self.add_point()
            await asyncio.sleep(PAUSE)

    def add_point(self) -> None:
        self._points.append((self._views.wall_offset(), self._views.point()))

    def points(self) -> Sequence[View]:
        """Return the points of the history; their times change with the machine's clock."""
        now = self._views.wall_offset()
        return [
            point if added == now else point | {"at": point["at"] - added + now}
            for added, point in self._points
        ]

    def end(self) -> None:
        """End all streams; later ones end at once."""
        self._ending.set()

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Answer one viewer until it goes away or `end` is called."""
        if request.transport is None:
            raise ConnectionResetError("the viewer has gone")
        place = self._places.enter(request.remote or "", request.transport.abort)
        if place is None:
            return web.json_response(
                {"error": f"{MOST_VIEWERS} pages are open, which is the most"}, status=503
            )
        place.becomes(State.BUSY)
        try:
            with lasting(request):
                return await self._stream(request)
        finally:
            place.leave()

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        try:
            await _write(response, _event("history", self.points()))
            while not self._ending.is_set():
                await _write(response, await self._latest())
                with suppress(TimeoutError):
                    async with asyncio.timeout(FRAME_SECONDS):
                        await self._ending.wait()
        except (ConnectionError, TimeoutError):
            # The viewer has gone, or does not read.
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _latest(self) -> bytes:
        async with self._making:
            now = self._views.clock()
            if now - self._made_at >= FRAME_SECONDS / 2:
                listed = await self._decisions(pb.ListDecisionsRequest(limit=DECISIONS))
                decisions = [decision_view(one) for one in listed.decisions]
                snapshot = _event("snapshot", await self._views.snapshot())
                self._frame = snapshot + _event("decisions", decisions)
                self._made_at = now
        return self._frame


def _event(name: str, value: Any) -> bytes:
    # JSON of one line, so that one line of data has it all.
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(value))


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(data)
