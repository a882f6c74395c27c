"""The declaration of one metric, and its form for Prometheus."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Family = GaugeMetricFamily | CounterMetricFamily
Sample = tuple[Sequence[str], float]
"""The values of a metric's labels, and the metric's value."""

_FAMILIES: Mapping[str, type[Family]] = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class Declared(NamedTuple):
    """One metric; `text` is its help, `labels` are the names of its labels."""

    kind: Literal["gauge", "counter", "histogram"]
    text: str
    labels: Sequence[str] = ()
    buckets: Sequence[float] = ()
    """Upper bounds of a histogram's buckets; empty for other kinds."""

    def family(self, name: str, samples: Iterable[Sample] = ()) -> Family:
        """Return a gauge or a counter with its samples. Raises KeyError for a histogram."""
        made = _FAMILIES[self.kind](name, self.text, labels=self.labels)
        for labels, value in samples:
            made.add_metric(labels, value)
        return made


def gauge(text: str, *labels: str) -> Declared:
    """Declare a value that goes up and down."""
    return Declared("gauge", text, labels)


def counter(text: str, *labels: str) -> Declared:
    """Declare a count; `_total` is added to its name."""
    return Declared("counter", text, labels)


def histogram(text: str, buckets: Sequence[float], *labels: str) -> Declared:
    """Declare a distribution, counted in buckets with these upper bounds."""
    return Declared("histogram", text, labels, buckets)
