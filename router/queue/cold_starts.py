"""Lets requests wait for the first pod of a model that has none: its fleet was scaled to zero.

    NoPodError ─► wait ─► a pod may be picked ─► the caller picks anew, the highest class first
                   └─► queue.cold-start-seconds have passed: the NoPodError is raised

Unlike `router.queue.queue` it needs no pods to weigh, no reports, and no `pick.queue`.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from warmpath.router.config.schema import QueueTable
from warmpath.router.pick.eligible import Field, NoPodError, Wanted
from warmpath.router.queue.crowd import Crowd
from warmpath.router.queue.request import GIVE_ROOM, Asker, Classes, ClientWaits, QueueFullError

LOOK_SECONDS = 0.25
"""Seconds between two looks for a pod, while requests wait: a cold start takes minutes."""
SETTLE_SECONDS = 3.0
"""How long a pod serves before requests go there: gateways look for pods themselves, each second."""
RETRY_SECONDS = 5.0
"""Time after which a request that found no place may try again."""
ANSWER_SECONDS = 0.5
"""Seconds before its caller's deadline at which a wait ends, for the pick and its answer."""


@dataclass(slots=True, eq=False)
class _Held:
    """A request that waits."""

    wanted: Wanted
    number: int
    priority: int
    tenant: str
    size: int
    caller: str
    turn: "asyncio.Future[None]"
    """Done when it waits no longer."""


class ColdStarts:
    """The requests of one router that wait for a pod, within the limits of [queue].

    `eligible` is as for `Queue`, `may`, `who`, `waited` and `waits` as for `HeldPicks`. `clock` returns
    seconds.
    """

    def __init__(
        self,
        settings: QueueTable,
        *,
        eligible: Callable[[Wanted], Field],
        may: Callable[[Any], Collection[str] | None],
        who: Callable[[Any], str],
        waited: Callable[[str, str, float], None],
        waits: ClientWaits,
        clock: Callable[[], float],
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._eligible = eligible
        self._may = may
        self._who = who
        self._waited = waited
        self._waits = waits
        self._clock = clock
        self._settle_seconds = settle_seconds
        self._there_since: dict[Wanted, float] = {}
        """Since when there are pods that serve, of those for which requests wait."""
        self._number = 0
        self._next_look: asyncio.TimerHandle | None = None
        self._is_ending = False
        self.refused = 0
        """Requests that found no place, or lost theirs to others, since the start."""
        self._settings = settings
        self._crowd: Crowd[_Held] = Crowd(settings)
        self.classes = Classes(settings, may)

    def use(self, settings: QueueTable) -> None:
        """Take other settings; requests that wait already keep their places and times."""
        before, names = self._crowd, self.classes.names
        self._settings, self.classes = settings, Classes(settings, self._may)
        self._crowd = Crowd(settings)
        for held in sorted(before, key=lambda one: one.number):
            held.priority = self.classes.find(names[held.priority])
            self._crowd.add(held)

    @property
    def seconds(self) -> float:
        """How long a request may wait; 0: none waits."""
        return 0.0 if self._is_ending else self._settings.cold_start_seconds

    def may_wait(self, error: NoPodError) -> bool:
        """Return whether a request that got this error may wait: the next pod of its model takes it."""
        wanted = error.wanted
        return bool(self.seconds and wanted is not None and wanted.model and not wanted.named)

    def counts(self) -> Mapping[str, int]:
        """Return how many requests wait, by model."""
        return Counter(one.wanted.model for one in self._crowd)

    async def wait(
        self,
        error: NoPodError,
        asker: Asker,
        *,
        priority: str,
        tenant: str,
        size: int,
        left: float = math.inf,
    ) -> None:
        """Return once a pod may be picked; the caller waits for `left` seconds more.

        `priority` is the name of a class. Raises QueueFullError, and `error` if no pod comes in time or
        the request may not wait.
        """
        if error.wanted is None or not self.may_wait(error) or self._waits.is_full(asker.client):
            raise error
        self._number += 1
        held = _Held(
            error.wanted,
            self._number,
            self.classes.find(self.classes.named(priority, asker)),
            tenant,
            size,
            self._who(asker.context) if asker.context else "",
            asyncio.get_running_loop().create_future(),
        )
        self._make_room(held)
        arrived, outcome = self._clock(), "left"
        if give_room := GIVE_ROOM.get(None):
            give_room()
        try:
            if self._next_look is None:
                self._look_later()
            most = max(0.0, min(self.seconds, left - ANSWER_SECONDS))
            with self._waits.one(asker.client):
                await asyncio.wait((held.turn,), timeout=most)
            outcome = "refused"
            if not held.turn.done():
                raise error
            held.turn.result()
            outcome = "sent"
        finally:
            if not held.turn.done():
                self._crowd.remove(held)
                held.turn.cancel()
            name = self.classes.names[held.priority]
            self._waited(name, outcome, max(0.0, self._clock() - arrived))

    def end(self) -> None:
        """Let no request wait from now on: the router ends. Those that wait get their answer."""
        self._is_ending = True
        for held in list(self._crowd):
            self._go(held)

    def _make_room(self, newcomer: _Held) -> None:
        """Add a request, and refuse those that give way to it. Raises QueueFullError."""
        for one in self._crowd.squeeze_in(newcomer):
            self.refused += 1
            problem = f"{len(self._crowd)} requests wait for a first pod of their models"
            is_long = len(self._crowd) >= self._settings.max_requests
            limit = f"queue.max-{'requests' if is_long else 'bytes'}"
            full = QueueFullError(problem, limit, RETRY_SECONDS)
            if one is newcomer:
                raise full
            one.turn.set_exception(full)

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_look = loop.call_later(LOOK_SECONDS, self._look, context=Context())

    def _look(self) -> None:
        """Let the requests go for which there is a pod now, the highest class first."""
        self._next_look = None
        now = self._clock()
        waiting = sorted(self._crowd, key=lambda one: (-one.priority, one.number))
        before, self._there_since = self._there_since, {}
        for wanted in {one.wanted for one in waiting}:
            if self._is_served(wanted):
                self._there_since[wanted] = before.get(wanted, now)
        for held in waiting:
            if now - self._there_since.get(held.wanted, math.inf) >= self._settle_seconds:
                self._go(held)
        if len(self._crowd):
            self._look_later()

    def _is_served(self, wanted: Wanted) -> bool:
        try:
            return any(seat.serves for seat in self._eligible(wanted).seats)
        except NoPodError:
            return False

    def _go(self, held: _Held) -> None:
        self._crowd.remove(held)
        held.turn.set_result(None)
