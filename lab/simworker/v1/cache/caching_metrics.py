"""Counts of look-ups and hits in the prefix cache.

Source: `vllm/v1/metrics/stats.py` of 0.32.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class PrefixCacheStats:
    """Counts since they were last fetched. Requests that were preempted before are counted apart."""

    reset: bool = False
    """Whether the cache was reset in this time."""
    requests: int = 0
    queries: int = 0
    """Tokens that `requests` looked up."""
    hits: int = 0
    """Tokens that `requests` looked up and found."""
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def record(self, num_tokens: int, num_hits: int, preempted: bool) -> None:
        """Count one request's look-up."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
            return
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hits
