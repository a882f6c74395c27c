"""Metrics of one value, without labels."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def gauge(name: str, help_text: str, value: float) -> Metric:
    """Return a value that goes up and down."""
    return GaugeMetricFamily(name, help_text, value=value)


def counter(name: str, help_text: str, value: float) -> Metric:
    """Return a value that only grows."""
    return CounterMetricFamily(name, help_text, value=value)
