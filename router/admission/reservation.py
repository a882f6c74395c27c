"""A call's share of the memory for messages (`router.admission.in_flight`)."""

from collections.abc import Callable
from enum import Enum


class CallState(Enum):
    """The progress of a call."""

    WAITING = 0
    READING = 1
    READ = 2
    LEFT = 3


class Reservation:
    """A call's share of the limit.

    `wake(None)` lets a waiting call read its message; `wake(error)` ends a call.
    """

    __slots__ = ("bytes", "client", "connection", "round", "seconds", "since", "state", "wake")

    def __init__(
        self, connection: str, client: str, size: int, wake: Callable[[Exception | None], None]
    ) -> None:
        self.connection = connection
        self.client = client
        """The connection's address; of a stranger one that begins with `STRANGER`."""
        self.seconds = 0.0
        """How long its message may take while others wait."""
        self.bytes = max(size, 1)
        self.wake = wake
        self.state = CallState.WAITING
        self.since = 0.0
        """Time of the clock from which the call could read its message."""
        self.round = 0
        """While it waits, the round of its client's connections in which it has its turn."""
