"""Figures are what they are called."""

from warmpath.lab.local.measure import Served, TrafficRun, figures, percentile


def served(pod: int, prompt: int, cached: int, first: float) -> Served:
    return Served(0.0, pod, prompt, cached, first, first + 1)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.9) == 90
    assert percentile(values, 0.99) == 99
    assert percentile([7.0], 0.99) == 7
    assert percentile([], 0.5) == 0


def test_hit_ratio_savings_and_imbalance_are_in_tokens() -> None:
    answers = [served(0, 100, 50, 1.0), served(0, 100, 0, 2.0), served(1, 50, 0, 3.0)]
    run = TrafficRun(answers, failed=1, delays=[0.5], choices=[0.002])
    result = figures(run, pods=2)
    assert result.hit_ratio == 50 / 250
    assert result.saved_tokens == 50
    assert result.imbalance == 150 / 100
    assert result.failed == 1
    assert result.choice_p50_ms == 2.0
    assert result.delay_p99 == 0.5


def test_nothing_served_is_no_error() -> None:
    result = figures(TrafficRun(), pods=2)
    assert result.hit_ratio == 0
    assert result.imbalance == 1
