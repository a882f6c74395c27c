"""The hit rate of the last requests."""

import pytest

from warmpath.lab.simworker.v1.cache.caching_metrics import CachingMetrics, PrefixCacheStats


def stats(requests: int, queries: int, hits: int, *, reset: bool = False) -> PrefixCacheStats:
    return PrefixCacheStats(reset=reset, requests=requests, queries=queries, hits=hits)


def sums(metrics: CachingMetrics) -> tuple[int, int, int]:
    return (
        metrics.aggregated_requests,
        metrics.aggregated_query_total,
        metrics.aggregated_query_hit,
    )


def test_nothing_looked_up_is_told_from_nothing_found() -> None:
    metrics = CachingMetrics()
    metrics.observe(stats(0, 0, 0))
    assert metrics.empty
    assert metrics.hit_rate == 0
    metrics.observe(stats(1, 8, 0))
    assert not metrics.empty
    assert metrics.hit_rate == 0


def test_the_oldest_observations_leave() -> None:
    metrics = CachingMetrics(max_recent_requests=3)
    metrics.observe(stats(2, 10, 10))
    metrics.observe(stats(1, 10, 5))
    assert metrics.hit_rate == 0.75
    metrics.observe(stats(1, 30, 0))
    assert sums(metrics) == (2, 40, 5)


def test_the_last_observation_stays_however_large() -> None:
    metrics = CachingMetrics(max_recent_requests=3)
    metrics.observe(stats(3, 10, 1))
    metrics.observe(stats(9, 10, 2))
    assert sums(metrics) == (9, 10, 2)


def test_a_reset_forgets_what_was_before() -> None:
    metrics = CachingMetrics()
    metrics.observe(stats(2, 10, 10))
    metrics.observe(stats(1, 4, 1, reset=True))
    assert sums(metrics) == (1, 4, 1)
    metrics.reset()
    assert metrics.empty
    assert sums(metrics) == (0, 0, 0)


def test_a_window_of_no_request_is_refused() -> None:
    with pytest.raises(ValueError, match="max_recent_requests: 0, at least 1"):
        CachingMetrics(0)
