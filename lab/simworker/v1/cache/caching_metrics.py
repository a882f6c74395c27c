"""Counts of look-ups and hits in the prefix cache, and the hit rate of the last requests.

Source: `vllm/v1/metrics/stats.py` of 0.32 (`CachingMetrics` is `PrefixCachingMetrics` up to 0.10).
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class PrefixCacheStats:
    """Counts since the last call for them. Requests that were preempted before are counted apart."""

    reset: bool = False
    """Whether the cache was reset."""
    requests: int = 0
    queries: int = 0
    """Tokens of these requests."""
    hits: int = 0
    """Tokens of these requests that were found."""
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    hits_by_source: dict[str, int] = field(default_factory=dict)
    """Tier -> hits there; only with a tier below the GPU's."""

    def record(
        self,
        num_tokens: int,
        num_hits: int,
        preempted: bool,
        hits_by_source: dict[str, int] | None = None,
    ) -> None:
        """Count one request's look-up."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
            return
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hits
        for source, hits in (hits_by_source or {}).items():
            self.hits_by_source[source] = self.hits_by_source.get(source, 0) + hits


class CachingMetrics:
    """Sums over at most the last `max_recent_requests` requests.

    Observations are dropped whole, the oldest first; the last one always stays.
    Raises ValueError if `max_recent_requests` is below 1.
    """

    def __init__(self, max_recent_requests: int = 1000) -> None:
        if max_recent_requests < 1:
            raise ValueError(f"max_recent_requests: {max_recent_requests}, at least 1")
        self.max_recent_requests = max_recent_requests
        self.query_queue: deque[tuple[int, int, int]] = deque()
        """Requests, tokens and hits of each observation, the oldest first."""
        self.reset()

    def observe(self, stats: PrefixCacheStats) -> None:
        """Add an observation of `make_prefix_cache_stats`; one with `reset` drops those before it."""
        if stats.reset:
            self.reset()
        if not stats.requests:
            return
        self._add(stats.requests, stats.queries, stats.hits)
        self.query_queue.append((stats.requests, stats.queries, stats.hits))
        while self.aggregated_requests > self.max_recent_requests and len(self.query_queue) > 1:
            requests, queries, hits = self.query_queue.popleft()
            self._add(-requests, -queries, -hits)

    def _add(self, requests: int, queries: int, hits: int) -> None:
        self.aggregated_requests += requests
        self.aggregated_query_total += queries
        self.aggregated_query_hit += hits

    def reset(self) -> None:
        self.aggregated_requests = 0
        self.aggregated_query_total = 0
        """Tokens looked up."""
        self.aggregated_query_hit = 0
        """Tokens found."""
        self.query_queue.clear()

    @property
    def empty(self) -> bool:
        """Whether no token was looked up; the hit rate is then 0."""
        return not self.query_queue

    @property
    def hit_rate(self) -> float:
        """Share of looked-up tokens that were found, 0 to 1."""
        total = self.aggregated_query_total
        return self.aggregated_query_hit / total if total else 0.0
