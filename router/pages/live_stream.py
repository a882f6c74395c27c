"""The stream of server-sent events that the live page reads.

    event: history    a list of points, once
    event: snapshot   the state of the router, every two seconds
    event: decisions  the last decisions, newest first, after each snapshot

Source of the format: the HTML standard, "Server-sent events".

The last hour in points of five seconds, for the page's charts. No I/O here.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from warmpath.process.listen import lasting
from warmpath.process.places import Places, State
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.diagnosis.decisions import decision_view
from warmpath.router.pages.live_view import View, Views

PAUSE = 5.0
"""Seconds from point to point."""
MOST = 720
"""Points that are kept: an hour."""


LIVE = "/api/v1/live"
MOST_VIEWERS = 16
FRAME_SECONDS = 2.0
"""Seconds from snapshot to snapshot."""
WRITE_SECONDS = 10.0
"""Longest wait for a browser to read."""
DECISIONS = 40
"""Decisions in each event of that name."""

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
        """Add a point to the history every few seconds, until cancelled."""
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
