"""A request that waits in the queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from warmpath.router.pick.weigh import Ask


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

    name: tuple[str, int]
    """The rank that it chose."""
    prefill: float
    """Seconds of its prefill there by which it delays others (`Candidate.own`)."""
    ahead: Mapping[tuple[str, int], float]
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
