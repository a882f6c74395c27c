"""Lets calls of Pick wait in the queue, and wakes them when it sends them.

    choose ─► Queue.enter ─► release ─► the call goes on with its pick
    news (a report, a load, a change of pods) ─► release in the loop's next turn
    the time that the last release returned  ─► release

Where too many calls of a connection wait already (`ClientWaits`), its further picks are made at once.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextvars import Context
from typing import Any

from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.config.schema import Config, QueueTable
from warmpath.router.pick.eligible import Eligible
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.picking import Picking
from warmpath.router.pick.weigh import Ask
from warmpath.router.pods.table import PodTable
from warmpath.router.queue.queue import Queue
from warmpath.router.queue.request import (
    GIVE_ROOM,
    Asker,
    Classes,
    ClientWaits,
    QueueFullError,
    Release,
    Waiting,
)
from warmpath.router.tracing.steps import NO_STEPS, Step, Steps

ANSWER_SHARE = 0.1
"""Share of the time until the caller's deadline that is kept for the answer; the wait ends before it."""
MOST_ANSWER_SECONDS = 0.5
"""Most seconds that are kept for the answer."""


class HeldPicks:
    """The waiting picks of one router, with their queue.

    `clock` returns seconds; it is the clock of the events' ingestion (`indexer.ranks`). `may` takes a
    call's context and returns the classes of priority (`queue.classes`) that the caller may name besides
    the class of requests that name none (`queue.usual-class`); None: all. `who` takes it and returns who
    the caller is. `waited` counts a pick that has left the queue, with its class, what became of it, and
    the seconds that it waited. `waits` counts the waiting calls of each connection.
    """

    def __init__(
        self,
        config: Config,
        picking: Picking,
        pods: PodTable,
        *,
        may: Callable[[Any], Collection[str] | None],
        who: Callable[[Any], str],
        waited: Callable[[str, str, float], None],
        waits: ClientWaits,
        clock: Callable[[], float] = time.monotonic,
        steps: Steps = NO_STEPS,
    ) -> None:
        self._steps = steps
        self.queue = Queue(picking, config.queue, eligible=Eligible(pods))
        self.classes = Classes(config.queue, may)
        self._may = may
        self._who = who
        self._picker = picking.picker
        self._clock = clock
        self._waited = waited
        self._waits = waits
        picking.on_room = self.news
        self._futures: dict[Waiting, asyncio.Future[Pick]] = {}
        self._nobodys = Context()
        """The context of scheduled releases: work for all waiting picks belongs to no call's trace."""
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    def enters(
        self,
        ask: Ask,
        request: pb.PickRequest | pb.ExplainRequest,
        asker: Asker,
        priority: int,
        left: float = math.inf,
    ) -> Waiting:
        """Return a new request for the queue; its caller waits for `left` seconds more."""
        now = self._clock()
        return Waiting(
            ask,
            arrived=now,
            until=now + left - min(ANSWER_SHARE * left, MOST_ANSWER_SECONDS),
            # There may be fewer classes than when the request was read.
            priority=min(priority, len(self.classes.names) - 1),
            tenant=request.tenant,
            # About a byte for each token: the keys of its blocks.
            size=request.ByteSize() + ask.tokens,
            caller=self._who(asker.context) if asker.context else "",
        )

    def waiting(self) -> Mapping[str, int]:
        counts = self.queue.crowd.counts()
        return {name: counts.get(at, 0) for at, name in enumerate(self.classes.names)}

    def use(self, settings: QueueTable) -> None:
        """Take other settings. Waiting picks of a class that is gone get the usual one."""
        before = self.classes.names
        self.classes = Classes(settings, self._may)
        self.queue.use(settings, lambda at: self.classes.find(before[at]))
        self.news()

    async def choose(
        self, ask: Ask, request: pb.PickRequest, asker: Asker, priority: int, left: float
    ) -> Pick:
        """Reserve a pick, like `Picker.reserve`, once a pod has room or the request may not wait longer.

        The arguments are as for `enters`. Raises QueueFullError, and as `Picker.weigh`.
        """
        if self._waits.is_full(asker.client):
            return self._picker.reserve(ask, self._clock())
        waiting = self.enters(ask, request, asker, priority, left)
        try:
            self.queue.enter(waiting, waiting.arrived)
        except QueueFullError:
            self._count(waiting, "refused")
            raise
        future: asyncio.Future[Pick] = asyncio.get_running_loop().create_future()
        self._futures[waiting] = future
        self._release(waiting.arrived)
        if future.done():
            return future.result()
        if give_room := GIVE_ROOM.get(None):
            give_room()
        try:
            with self._waits.one(asker.client), self._steps.step(Step.QUEUE):
                return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._futures.pop(waiting, None)
                self.queue.leave(waiting)
                self._count(waiting, "left")
            elif future.exception() is None:
                # It was sent in the same turn of the loop in which its caller was cancelled.
                self._picker.withdraw(future.result(), self._clock())
            raise

    def news(self) -> None:
        """Release requests in the loop's next turn, after an event that may give a pod room."""
        if self._soon is None and len(self.queue):
            self._soon = asyncio.get_running_loop().call_soon(self._release, context=self._nobodys)

    def drain(self) -> None:
        """Send the waiting picks to the best pods and let none wait from now on: the router ends."""
        self.queue.drain()
        self.news()

    def _release(self, now: float | None = None) -> None:
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = None
        now = self._clock() if now is None else now
        release = self.queue.release(now)
        self._resolve(release, now)
        if len(self.queue):
            loop = asyncio.get_running_loop()
            delay = max(0.0, release.next_at - now)
            self._later = loop.call_later(delay, self._release, context=self._nobodys)

    def _resolve(self, release: Release, now: float) -> None:
        for waiting, placed in release.sent.items():
            future = self._futures.pop(waiting, None)
            if future is None or future.done():
                # Its caller was cancelled in this turn of the loop.
                self._picker.withdraw(placed, now)
                continue
            future.set_result(placed)
            self._count(waiting, "sent")
        for waiting, error in release.refused.items():
            future = self._futures.pop(waiting, None)
            if future is not None and not future.done():
                future.set_exception(error)
                self._count(waiting, "refused")

    def _count(self, waiting: Waiting, outcome: str) -> None:
        seconds = max(0.0, self._clock() - waiting.arrived)
        self._waited(self.classes.names[waiting.priority], outcome, seconds)
