"""The prefix cache's hit rate.

Source: `CacheMetricData` in `vllm/core/block/common.py` of 0.9.2, which averages over thousands of
queries at a time so that no counter overflows; with Python's integers the quotient is the same.
"""


class CacheMetricData:
    """Counts of look-ups of full blocks, and of those that hit."""

    def __init__(self) -> None:
        self.num_queries = 0
        self.num_hits = 0

    def query(self, *, hit: bool) -> None:
        """Count a query."""
        self.num_queries += 1
        self.num_hits += hit

    def get_hit_rate(self) -> float:
        """Return hits per query, 0 to 1; 0 before the first query."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0
