"""The results of a release of the queue, and the error of a request that finds no place."""

from collections.abc import Sequence
from typing import NamedTuple

from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.pick import Placed
from warmpath.router.pick.weigh import Choice
from warmpath.router.queue.request import Waiting


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
