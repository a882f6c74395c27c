"""Counts of look-ups and hits in the prefix cache.

Source: `vllm/v1/metrics/stats.py` of 0.32.
"""

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
