"""Calls that have passed the gate and whose messages have not come.

While more calls come than can be answered, the addresses that ask share the room for these calls, and
the connections of an address share its part. Otherwise the connections that are read first in a turn
would take all of it, since they are the first in every turn.

A call whose message does not come soon counts no longer: many such calls would keep out all others.
"""

import math
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from warmpath.h2grpc.metadata import address_of

LATE_SECONDS = 0.1
"""The time for which a call counts; its message mostly comes within a round trip of the network."""


class _Call:
    """A call on its way."""

    __slots__ = ("connection", "counts", "since")

    def __init__(self, connection: str, since: float) -> None:
        self.connection = connection
        self.since = since
        self.counts = True


class Coming:
    """Counts these calls by connection.

    `chance` returns random numbers from 0 to 1. Times are in seconds.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self.most = 0.0
        """The most of them while more calls come than can be answered."""
        self._of: dict[str, int] = {}
        self._all = 0
        self._calls: deque[_Call] = deque()
        """The calls by age, with some that count no longer."""
        self._ask: set[str] = set()
        """The connections that have asked in this turn."""
        self._asked: set[str] = set()
        """Those that asked in the turn before."""
        self._parts: dict[str, float] = {}
        """Their parts of the room."""

    def __len__(self) -> int:
        return self._all

    def asks(self, connection: str) -> None:
        """Note that a connection has asked for a call."""
        self._ask.add(connection)

    def turn(self, now: float) -> None:
        """Begin a new turn of the event loop."""
        self.forget_late(now)
        # A connection is not always read in every turn.
        addresses = {connection: address_of(connection) for connection in self._asked | self._ask}
        counts = Counter(addresses.values())
        self._parts = {
            connection: 1 / len(counts) / counts[address]
            for connection, address in addresses.items()
        }
        self._asked, self._ask = self._ask, set()

    def comes(self, connection: str, now: float) -> Callable[[], None]:
        """Count a call that has passed the gate.

        Return what is to be called once its message has come, or it has ended without.
        """
        call = _Call(connection, now)
        self._calls.append(call)
        self._of[connection] = self._of.get(connection, 0) + 1
        self._all += 1
        return partial(self._forget, call)

    def forget_late(self, now: float) -> None:
        """Count calls no longer whose messages should have come by now."""
        calls = self._calls
        while calls and (not calls[0].counts or calls[0].since <= now - LATE_SECONDS):
            self._forget(calls.popleft())

    def _forget(self, call: _Call) -> None:
        if not call.counts:
            return
        call.counts = False
        self._all -= 1
        self._of[call.connection] -= 1
        if not self._of[call.connection]:
            del self._of[call.connection]

    def room(self, connection: str) -> int:
        """Return how many more calls of a connection may come while not all can be answered."""
        # One that has not asked yet has all of it for a turn.
        share = self.most * self._parts.get(connection, 1.0)
        # A share that is no whole number is rounded by chance, so that small ones are no 0 for ever.
        part, whole = math.modf(share)
        own = int(whole) + (self._chance() < part)
        return min(math.ceil(self.most) - self._all, own - self._of.get(connection, 0))
