"""The hit rate of the last requests, which vLLM logs.

Source: `CachingMetrics` in `vllm/v1/metrics/stats.py` of 0.32 (`PrefixCachingMetrics` up to 0.10).
"""

from collections import deque

from warmpath.lab.simworker.v1.cache.prefix_cache_stats import PrefixCacheStats


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
        """Forget everything."""
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
