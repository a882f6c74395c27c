"""The choice of a rank for a request.

Source: `DPLBAsyncMPClient.get_core_engine_for_request` in `vllm/v1/engine/core_client.py` of 0.32, with
one client whose counts are always current, where vLLM's are 100 ms old at worst.
"""

from collections.abc import Sequence

from warmpath.lab.simworker.engine import Load


def score(load: Load, in_flight: int) -> float:
    """Return how loaded a rank is: its requests, plus a penalty for waiting ones if its cache is full.

    The penalty rises from nothing at half the cache in use to three times the waiting requests at all of
    it: a queue in front of a full cache drains slowly.
    """
    requests = float(max(in_flight, load.waiting + load.running))
    return requests + load.waiting * 6.0 * max(0.0, load.kv_cache_usage - 0.5)


class Balancer:
    """Picks the least loaded rank; equal ones take turns."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._start = 0

    def choose(self, scores: Sequence[float]) -> int:
        """Return a rank, given every rank's score."""
        order = [(self._start + step) % self._ranks for step in range(self._ranks)]
        self._start = (self._start + 1) % self._ranks
        return min(order, key=lambda rank: scores[rank])
