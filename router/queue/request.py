"""A request that waits in the queue.

The results of a release of the queue, and the error of a request that finds no place.

The queue's classes of requests, by name; each caller may name some of them.

The place of a Pick's request in the queue: its class, its tenant, and how long it may wait.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from warmpath.indexer.index.slot import RankName
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.pick import Placed
from warmpath.router.pick.weigh import Ask, Choice
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.prompt.token_prompt import TokenPrompt


class Wanted(NamedTuple):
    """The pods that a request wants; requests that want the same ones share a lane."""

    model: str
    lora: str = ""
    named: Sequence[str] = ()
    """Ids of pods, in a tuple; empty: all pods of the model."""
    disaggregated: bool = False


class Entering(NamedTuple):
    """A request that enters the queue. Times are seconds of the queue's clock."""

    ask: Ask
    wanted: Wanted
    arrived: float
    until: float = float("inf")
    """Latest time of its wait; then it goes to the pod that is best, for its caller waits no longer."""
    priority: int = 0
    """Its class: a higher one goes first."""
    tenant: str = ""
    """The tenant whose share it uses."""
    size: int = 0
    """Its bytes in memory."""
    caller: str = ""
    """Who sent it, as far as the router knows: a client of the configuration, or an address."""


class Look(NamedTuple):
    """The last weighing of a request that was passed over."""

    name: RankName
    """The rank that it chose."""
    prefill: float
    """Seconds of its prefill there by which it delays others (`Candidate.own`)."""
    ahead: Mapping[RankName, float]
    """Seconds of prefill of those that were passed over before it, by rank."""
    release: int
    """The number of the release."""
    at: float


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits. Times are seconds of the queue's clock."""

    number: int
    """Unique in a queue, and higher than those of requests that entered before."""
    ask: Ask
    wanted: Wanted
    arrived: float
    until: float
    priority: int
    tenant: str
    size: int
    caller: str
    seconds: float
    """Its cheapest prefill, when it was last weighed."""
    uncached: int
    """The tokens of that prefill."""
    key: float
    """Its place within its class and its tenant's share: the least goes first."""
    is_waiting: bool = True
    look: Look | None = None


class QueueFullError(Exception):
    """A request is refused: too many of its class or of higher ones wait."""

    def __init__(self, problem: str, limit: str, seconds: float) -> None:
        super().__init__(f"{problem} ({limit})")
        self.limit = limit
        """The configuration key of the limit that is reached."""
        self.seconds = seconds
        """Seconds after which there may be room."""


class Sent(NamedTuple):
    """A request that goes to its pod now: its pick is reserved, to be settled or withdrawn."""

    waiting: Waiting
    placed: Placed
    choice: Choice


class Refused(NamedTuple):
    """A request that waits no longer and gets no pick."""

    waiting: Waiting
    error: NoPodError | QueueFullError


class Release(NamedTuple):
    """The result of a release."""

    sent: Sequence[Sent]
    refused: Sequence[Refused]
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


class Classes:
    """The configured classes, the lowest first, and the one of requests that name none."""

    def __init__(self, names: Sequence[str], usual: str) -> None:
        self.names = names
        self._places = {name: place for place, name in enumerate(names)}
        self._usual = self._places[usual]

    def place(self, name: str, may: Collection[str] | None) -> int:
        """Return the position of a request's class; a higher one goes first. No name: the usual class.

        `may` are the classes that the caller may name besides the usual one; None: all. Raises
        BadRequestError.
        """
        if not name:
            return self._usual
        place = self._places.get(name)
        if place is None or not self._is_open(place, name, may):
            allowed = [one for at, one in enumerate(self.names) if self._is_open(at, one, may)]
            raise BadRequestError(
                "priority", f"is {name!r}; this caller may name {', '.join(allowed)}"
            )
        return place

    def find(self, name: str) -> int:
        """Return the position of a class; that of the usual one if there is no such class."""
        return self._places.get(name, self._usual)

    def may_name(self, name: str, may: Collection[str] | None) -> bool:
        """Return whether a caller may name a class, which may be unknown."""
        place = self._places.get(name)
        return place is not None and self._is_open(place, name, may)

    def _is_open(self, place: int, name: str, may: Collection[str] | None) -> bool:
        return may is None or place == self._usual or name in may


ANSWER_SHARE = 0.1
"""Share of the time until the caller's deadline that is kept for the answer; the wait ends before it."""
MOST_ANSWER_SECONDS = 0.5
"""Most seconds that are kept for the answer."""


class Asker(NamedTuple):
    """The caller of Pick."""

    client: str = ""
    """Its connection."""
    context: object = None
    """The context of its call; None: there is none, and it may name every class."""
    request_id: str = ""
    """Its name for the request; empty: none."""


ANYBODY = Asker()


class QueuePlace(NamedTuple):
    """The properties of a request that matter in the queue only."""

    client: str
    """Its connection."""
    priority: int
    """Its class."""
    tenant: str
    named: tuple[str, ...]
    """The pods that it names."""
    size: int
    """Bytes of its message."""
    caller: str = ""
    """Who sent it, as far as the router knows."""

    def entering(self, ask: Ask, now: float, left: float = math.inf) -> Entering:
        """Return the entry of a request that arrives `now`; its caller waits for `left` seconds more."""
        prompt = cast("TokenPrompt", ask.prompt)
        answering = min(ANSWER_SHARE * left, MOST_ANSWER_SECONDS)
        return Entering(
            ask,
            Wanted(prompt.model, prompt.lora, self.named, ask.disaggregated),
            now,
            now + left - answering,
            self.priority,
            self.tenant,
            # About a byte for each token: the keys of its blocks.
            self.size + ask.tokens,
            self.caller,
        )


def place_of(
    request: pb.PickRequest | pb.ExplainRequest,
    client: str,
    classes: Classes,
    may: Collection[str] | None,
    caller: str = "",
) -> QueuePlace:
    """Return a request's place in the queue. Raises BadRequestError.

    `may` names the classes that its caller may use, None for all of them.
    """
    return QueuePlace(
        client,
        classes.place(request.priority, may),
        request.tenant,
        tuple(sorted({*request.pods})),
        request.ByteSize(),
        caller,
    )
