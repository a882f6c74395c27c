"""A request that waits in the queue, and what comes of it."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from warmpath.indexer.index.slot import RankName
from warmpath.router.config.schema import QueueTable
from warmpath.router.pick.eligible import NoPodError, Wanted
from warmpath.router.pick.pick import Pick
from warmpath.router.pick.weigh import Ask, Choice
from warmpath.router.prompt.limits import BadRequestError

GIVE_ROOM: ContextVar[Callable[[], None]] = ContextVar("GIVE_ROOM")
"""Frees the room of the current call's message (`router.calls.intake`); its bytes count here from then
on."""


class Look(NamedTuple):
    """The last weighing of a request that was passed over."""

    name: RankName
    """The rank that it chose."""
    prefill: float
    """Seconds of its prefill there by which it delays others (`Candidate.own`)."""
    ahead: Mapping[RankName, float]
    """By rank, seconds of prefill of the requests that were passed over before this one."""
    release: int
    """The number of the release that weighed it."""
    at: float


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits, or is about to. Times are seconds of the queue's clock."""

    ask: Ask
    arrived: float
    until: float = float("inf")
    """Latest time of its wait; then it goes to the pod that is best, for its caller waits no longer."""
    priority: int = 0
    """Its class: a higher one goes first."""
    tenant: str = ""
    """The tenant whose share it uses."""
    size: int = 0
    """Bytes of the request in memory."""
    caller: str = ""
    """Who sent it, as far as the router knows: a client of the configuration, or an address."""
    number: int = 0
    """Unique in a queue, and higher than those of requests that entered before."""
    seconds: float = 0.0
    """Seconds of its cheapest prefill, when it was last weighed."""
    uncached: int = 0
    """The tokens of the cheapest prefill."""
    key: float = 0.0
    """Its place within its class and its tenant's share: the least goes first."""
    is_waiting: bool = True
    look: Look | None = None

    @property
    def wanted(self) -> Wanted:
        """The pods that it wants; requests that want the same ones share a lane."""
        return self.ask.wanted


class QueueFullError(Exception):
    """A request is refused: too many of its class or of higher ones wait."""

    def __init__(self, problem: str, limit: str, seconds: float) -> None:
        super().__init__(f"{problem} ({limit})")
        self.limit = limit
        """The configuration key of the limit that is reached."""
        self.seconds = seconds
        """Seconds after which there may be room."""


class Release(NamedTuple):
    """The result of a release."""

    sent: Mapping[Waiting, Pick]
    """The requests that go to their pods now: their picks are reserved, to be settled or withdrawn."""
    refused: Mapping[Waiting, NoPodError | QueueFullError]
    """The requests that wait no longer and get no pick, with the reasons."""
    next_at: float
    """Time of the next release if there is no news until then; infinity if nothing waits."""


class Standing(NamedTuple):
    """The place that a request would have in the queue."""

    behind: int
    """Number of requests that it waits for, since they go first and want the same pods."""
    choice: Choice
    """The choice at this moment, with the prefills of those requests counted as waiting."""
    seconds: float
    """Predicted seconds until the chosen rank has room; 0 if it has, or needs none for this request."""

    def __bool__(self) -> bool:
        """Return whether a pick would wait."""
        return bool(self.behind or self.seconds)


class Asker(msgspec.Struct, frozen=True):
    """The caller of Pick."""

    client: str = ""
    """The address of its connection (`Call.peer`)."""
    context: object = None
    """The context of its call; None: there is none, and the caller may name every class."""
    request_id: str = ""
    """Its name for the request; empty: none."""


ANYBODY = Asker()


class ClientWaits:
    """Counts the calls of each connection that wait, of which there may be `most`.

    A client's picks and reports may share a connection, which bounds the number of its open calls. If
    all of them waited, its reports, which make room for waiting picks, could not arrive.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()

    def is_full(self, client: str) -> bool:
        return self._counts[client] >= self._most

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Count a call while the context is open."""
        self._counts[client] += 1
        try:
            yield
        finally:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]


class Classes:
    """The configured classes, the lowest first, and the one of requests that name none.

    `may` takes a call's context and returns the classes that the caller may name besides the usual one;
    None: all.
    """

    def __init__(self, queue: QueueTable, may: Callable[[Any], Collection[str] | None]) -> None:
        self.names: Sequence[str] = queue.classes
        self.of_objectives: Mapping[str, str] = queue.objectives
        """Classes by the names of objectives."""
        self._places = {name: place for place, name in enumerate(self.names)}
        self._usual = self._places[queue.usual_class]
        self._may = may

    def place(self, name: str, asker: Asker = ANYBODY) -> int:
        """Return the position of a request's class; a higher one goes first. No name: the usual class.

        Raises BadRequestError.
        """
        if not name:
            return self._usual
        place = self._places.get(name)
        if place is None or not self._is_open(name, asker):
            allowed = [one for one in self.names if self._is_open(one, asker)]
            raise BadRequestError(
                "priority", f"is {name!r}; this caller may name {', '.join(allowed)}"
            )
        return place

    def find(self, name: str) -> int:
        """Return the position of a class; that of the usual one if there is no such class."""
        return self._places.get(name, self._usual)

    def named(self, name: str, asker: Asker, objective: str = "", above: int = 0) -> str:
        """Return the class that a request names, itself or by an objective.

        An objective without a class is so many classes `above` the usual one, as far as there are some.
        It is empty if the caller may not name it.
        """
        name = name or self.of_objectives.get(objective, "")
        if not name and above:
            name = self.names[min(max(self._usual + above, 0), len(self.names) - 1)]
        return name if name in self._places and self._is_open(name, asker) else ""

    def _is_open(self, name: str, asker: Asker) -> bool:
        may = self._may(asker.context) if asker.context else None
        return may is None or self._places[name] == self._usual or name in may
