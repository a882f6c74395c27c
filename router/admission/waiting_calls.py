"""The calls that wait for a place (`router.admission.in_flight`), in the order of their turns.

A line has the calls of one client whose messages have about the same size. If one of its calls fits, so
do its others, and those of the lines of that size of other clients of that kind. So only the first call
of the best line of each kind and size is looked at: a call's cost grows with the logarithm of the number
of clients.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from operator import itemgetter

from warmpath.process.ranking import Rank, Ranking


class CallState(Enum):
    """The progress of a call."""

    WAITING = 0
    READING = 1
    READ = 2
    LEFT = 3


@dataclass(slots=True, eq=False)
class Reservation:
    """A call's place. `wake(None)` lets the call read its message; `wake(error)` ends it."""

    connection: str
    client: str
    """The connection's address; of a stranger one that begins with `STRANGER`."""
    bytes: int
    seconds: float
    """How long its message may take while others wait."""
    wake: Callable[[Exception | None], None]
    state: CallState = CallState.WAITING
    since: float = 0.0
    """Time of the clock from which the call could read its message."""
    round: int = 0
    """While it waits, the round of its client's connections in which it has its turn."""


@dataclass(slots=True, eq=False)
class Line:
    """The waiting calls of one client whose messages have about the same size."""

    turn: int
    """Orders lines of equal rank: the number of the line's latest turn."""
    calls: Ranking[Reservation] = field(default_factory=Ranking)
    """The calls, by the round in which each has its turn, then by arrival."""


@dataclass(slots=True, eq=False)
class Client:
    """The waiting calls of one client."""

    number: int
    calls: dict[str, dict[Reservation, None]] = field(default_factory=dict)
    """The calls by connection, in the order of arrival."""
    longest: Ranking[str] = field(default_factory=Ranking)
    """Connections by their number of calls."""
    lines: dict[int, Line] = field(default_factory=dict)
    """The lines by the number of binary digits of their messages' size."""


class WaitingCalls:
    """All waiting calls. Clients of one kind with the same size of message have their turns by rank.

    `kind_of` and `rank_of` return those of a client. A rank may change with the number of calls; `rank`
    has to be called if it changes otherwise.
    """

    def __init__(self, kind_of: Callable[[str], int], rank_of: Callable[[str], Rank]) -> None:
        self._kind_of = kind_of
        self._rank_of = rank_of
        self._numbers = count()
        self._clients: dict[str, Client] = {}
        self._counts: dict[str, int] = {}
        """Number of calls of each client."""
        self._most: Ranking[str] = Ranking()
        """Clients by their number of calls."""
        self._lines: dict[tuple[int, int], Ranking[Line]] = {}
        """The lines, by the client's kind and the number of binary digits of the messages' size."""
        self.number = 0
        """Number of calls."""

    @property
    def clients(self) -> Collection[str]:
        return self._counts.keys()

    def of_client(self, name: str) -> int:
        return self._counts.get(name, 0)

    def of_connection(self, client: str, connection: str) -> list[Reservation]:
        """Return the calls of a client's connection, in the order of arrival."""
        found = self._clients.get(client)
        return list(found.calls.get(connection, ())) if found else []

    def add(self, place: Reservation) -> None:
        client = self._clients.get(place.client)
        if client is None:
            client = self._clients[place.client] = Client(next(self._numbers))
        line = client.lines.get(place.bytes.bit_length())
        if line is None:
            line = client.lines[place.bytes.bit_length()] = Line(next(self._numbers))
        before = client.calls.setdefault(place.connection, {})
        # Connections take turns: a connection's next call comes a round after the one before it.
        place.round = line.calls.first[0][0] if line.calls else 0
        if before:
            place.round = max(place.round, next(reversed(before)).round + 1)
        before[place] = None
        line.calls.put(place, (place.round, next(self._numbers)))
        self._count(place, 1)

    def drop(self, place: Reservation, *, has_turn: bool = False) -> None:
        """Remove a call; with `has_turn`, since it has its turn now."""
        client = self._clients[place.client]
        size = place.bytes.bit_length()
        line = client.lines[size]
        line.calls.drop(place)
        if has_turn:
            line.turn = next(self._numbers)
        if not line.calls:
            del client.lines[size]
            at = self._kind_of(place.client), size
            self._lines[at].drop(line)
            if not self._lines[at]:
                del self._lines[at]
        del client.calls[place.connection][place]
        self._count(place, -1)

    def rank(self, name: str) -> None:
        """Note that a client's rank has changed; nothing happens if none of its calls waits."""
        client = self._clients.get(name)
        if client is None:
            return
        kind, rank = self._kind_of(name), self._rank_of(name)
        for size, line in client.lines.items():
            group = self._lines.get((kind, size))
            if group is None:
                group = self._lines[kind, size] = Ranking()
            group.put(line, (*rank, line.turn))

    def firsts(self) -> list[Reservation]:
        """Return the first waiting call of each kind and message size, in the order of their turns."""
        firsts = sorted((group.first for group in self._lines.values()), key=itemgetter(0))
        return [line.calls.first[1] for _, line in firsts]

    def to_refuse(self, newest: Reservation) -> Reservation:
        """Return the latest call of the connection with the most, of the client with the most calls.

        Among equals it is the client, or the connection, of `newest`.
        """
        name = self._most.last
        if self._counts[newest.client] == self._counts[name]:
            name = newest.client
        client = self._clients[name]
        connection = client.longest.last
        own = client.calls.get(newest.connection, ()) if newest.client == name else ()
        if len(own) == len(client.calls[connection]):
            connection = newest.connection
        return next(reversed(client.calls[connection]))

    def _count(self, place: Reservation, more: int) -> None:
        name, connection = place.client, place.connection
        client = self._clients[name]
        self.number += more
        waiting = self._counts[name] = self._counts.get(name, 0) + more
        own = client.calls[connection]
        if own:
            client.longest.put(connection, (len(own), next(self._numbers)))
        else:
            client.longest.drop(connection)
            del client.calls[connection]
        if waiting:
            self._most.put(name, (waiting, client.number))
            self.rank(name)
        else:
            self._most.drop(name)
            del self._counts[name], self._clients[name]
