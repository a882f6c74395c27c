"""Learns from engines' metrics how many requests their batches hold at most, and so which are full.

An engine runs a limited number of requests at once (vLLM's `max-num-seqs`, SGLang's
`max-running-requests`, TensorRT-LLM's `max_batch_size`) and names it in no metric. Beyond it a request
waits until another one is answered, however little prefill there is to do.

A limit shows as a highest number of running requests that comes again and again while others wait.
Without a limit the highest number is an exception, or has only just been reached by growing traffic.
"""

from typing import NamedTuple

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.engine_metrics import Observed

SETTLED = 512.0
"""Requests x seconds: a highest number of requests counts as the limit after this, divided by it. In
that time some of them are answered (an answer takes tens of seconds), and others take their places."""
FORGOTTEN = 600.0
"""Seconds after which a highest number that did not come again is forgotten."""


class _Highest(NamedTuple):
    """The highest number of running requests of a rank."""

    running: int
    since: float
    """Time of the first observation with it."""
    seen: float
    """Time of the latest one."""


class Batches:
    """The highest number of running requests of each rank that was observed."""

    def __init__(self) -> None:
        self._highest: dict[RankName, _Highest] = {}

    def is_full(self, name: RankName, observed: Observed) -> bool:
        """Learn from a rank's next observation; return whether others wait for a place in its batch."""
        running, at = observed.running, observed.at
        highest = self._highest.get(name)
        is_old = highest is not None and not 0 <= at - highest.seen <= FORGOTTEN
        if highest is None or is_old or running > highest.running:
            self._highest[name] = _Highest(running, at, at)
            return False
        if running < highest.running:
            return False
        self._highest[name] = highest._replace(seen=at)
        return observed.waiting > 0 and running * (at - highest.since) >= SETTLED

    def forget(self, name: RankName) -> None:
        """Forget a removed rank."""
        self._highest.pop(name, None)
