"""A closed loop: says when each request of sessions is sent, since it follows the answer before it.

a place is free, or the next session is due ──► its first request
a request is sent ─────────────────────────────► sub-agents that begin with it
an answer has ended ───────────────────────────► the thread's next request, a pause later
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from warmpath.lab.simulate.traffic.requests import LoggedRequest
from warmpath.lab.simulate.traffic.sessions import Session
from warmpath.lab.simworker.engine import Generation
from warmpath.lab.simworker.virtual.cluster import RequestOutcome, VirtualCluster

START_GAP = 2.0
"""Seconds between the first sessions of those that run at once, the mean: they do not begin together."""
SPREAD = 10.0
"""Seconds within which requests beside the sessions follow those whose tokens they match."""


class Due(NamedTuple):
    """A request's number, and when it is to be sent."""

    at: float
    number: int


class Took(NamedTuple):
    """A session's begin and end, in seconds."""

    begun: float
    ended: float


class ClosedLoop:
    """Sends sessions, in their order: `at_once` at a time, or where that is 0, `rate` a second.

    Where both are 0, each begins at its first request's time. Sessions that arrive at a rate do so as a
    Poisson process. `beside` are requests of nobody's session, of which as many prompt tokens are sent
    as of sessions. Requests have numbers in the order of `requests`, those beside last. Call `begin`
    first, then `sent` and `ended` of each request; send what each of them yields.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        *,
        at_once: int = 0,
        rate: float = 0.0,
        beside: Sequence[LoggedRequest] = (),
        rng: Random,
    ) -> None:
        self.requests: list[LoggedRequest] = []
        self.took: dict[int, Took] = {}
        """The sessions that have ended, by their places in the order."""
        self._at_once = at_once
        self._rate = rate
        self._rng = rng
        self._first: list[int] = []
        """The number of each session's first request."""
        self._next: dict[int, tuple[int, float]] = {}
        """Number and pause of the request that follows an answer, by the number of the one answered."""
        self._agents: dict[int, list[tuple[int, float]]] = {}
        """First requests of sub-agents and their delays, by the request that they begin with."""
        self.session: list[int] = []
        """The place of each request's session in the order."""
        self.thread: list[int] = []
        """The place of each request's thread in its session."""
        self._left: list[int] = []
        """How many requests of each session have not ended."""
        self._begun: dict[int, float] = {}
        for session in sessions:
            self._add(session)
        self.of_sessions = len(self.requests)
        """How many requests belong to sessions."""
        self._others = iter(range(self.of_sessions, self.of_sessions + len(beside)))
        self._owed = 0
        """Prompt tokens of sessions beyond those sent beside them."""
        self.requests += beside
        self._waiting = iter(range(len(sessions)))
        """The sessions that have not begun."""

    def _add(self, session: Session) -> None:
        place, first = len(self._first), len(self.requests)
        self._first.append(first)
        self._left.append(session.count)
        for nth, thread in enumerate(session.threads):
            begins = len(self.requests)
            if nth:
                self._agents.setdefault(first + thread.follows, []).append((begins, thread.delay))
            for step, one in enumerate(thread.requests):
                if step:
                    self._next[begins + step - 1] = begins + step, one.pause or 0.0
                self.requests.append(one)
                self.session.append(place)
                self.thread.append(nth)

    def begin(self, now: float) -> Iterator[Due]:
        """Yield the first requests of the first sessions, or, unless they run at once, of all."""
        if self._at_once:
            for _ in range(min(self._at_once, len(self._first))):
                wait = self._rng.uniform(0.0, START_GAP * self._at_once)
                yield from self._next_session(now + wait)
            return
        at = now
        for first in self._first:
            if self._rate:
                at += self._rng.expovariate(self._rate)
            else:
                at = now + self.requests[first].at
            yield from self._next_session(at)

    def _next_session(self, at: float) -> Iterator[Due]:
        place = next(self._waiting, None)
        if place is not None:
            self._begun[place] = at
            yield Due(at, self._first[place])

    def sent(self, number: int, now: float) -> Iterator[Due]:
        """Yield first requests of sub-agents that begin with this request, and requests beside it."""
        for agent, delay in self._agents.get(number, ()):
            yield Due(now + delay, agent)
        if number < self.of_sessions:
            self._owed += self.requests[number].prompt_tokens
            while self._owed > 0 and (other := next(self._others, None)) is not None:
                self._owed -= self.requests[other].prompt_tokens
                yield Due(now + self._rng.uniform(0.0, SPREAD), other)

    def ended(self, number: int, now: float) -> Iterator[Due]:
        """Yield the requests that follow an answer's end."""
        if number >= self.of_sessions:
            return
        if following := self._next.get(number):
            yield Due(now + following[1], following[0])
        place = self.session[number]
        self._left[place] -= 1
        if not self._left[place]:
            self.took[place] = Took(self._begun.pop(place), now)
            if self._at_once:
                yield from self._next_session(now)


class LoopRun:
    """Lets the requests of a loop arrive at a cluster; `made` returns a request by its number.

    The requests tell `ended` of their last token.
    """

    def __init__(
        self, loop: ClosedLoop, cluster: VirtualCluster[Any], made: Callable[[int], Generation]
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._made = made
        self._outcomes: list[RequestOutcome] = []

    def run(self) -> list[RequestOutcome]:
        """Run all requests; return their outcomes in the order of their arrivals."""
        self._plan(self._loop.begin(0.0))
        self._cluster.run(())
        return self._outcomes

    def ended(self, number: int) -> None:
        self._plan(self._loop.ended(number, self._cluster.now))

    def _plan(self, dues: Iterable[Due]) -> None:
        for due in dues:
            self._cluster.call_at(due.at, partial(self._send, due.number))

    def _send(self, number: int) -> None:
        self._outcomes.append(self._cluster.arrive(self._made(number)))
        self._plan(self._loop.sent(number, self._cluster.now))
