"""Exemplars: the trace behind a latency, for scrapers that ask for OpenMetrics."""

from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar, Timestamp

from warmpath.router.metrics.calls import Metrics
from warmpath.router.tracing.tracer import Tracer

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Traced(Tracer):
    is_on = True

    def __init__(self) -> None:
        self.id = ""

    def trace_id(self) -> str:
        return self.id


def exemplars(metrics: Metrics, name: str) -> dict[str, Exemplar]:
    """Return the exemplars of a histogram, by the upper bound of their bucket."""
    families = text_string_to_metric_families(open_metrics(metrics).decode())
    [family] = [one for one in families if one.name == name]
    return {one.labels["le"]: one.exemplar for one in family.samples if one.exemplar}


def test_a_bucket_has_the_last_trace_that_fell_into_it_with_its_time() -> None:
    tracer = Traced()
    metrics = Metrics(tracer, iter([10.0, 20.0, 30.0]).__next__)
    tracer.id = TRACE[::-1]
    metrics.answered("Score", "OK", 0.004)
    tracer.id = TRACE
    metrics.answered("Score", "OK", 0.003)
    metrics.stepped("match", 70.0)
    tracer.id = ""
    metrics.answered("Score", "OK", 0.002)
    labels = {"trace_id": TRACE}
    assert exemplars(metrics, "warmpath_request_seconds") == {
        "0.005": Exemplar(labels, 0.003, Timestamp(20, 0))
    }
    assert exemplars(metrics, "warmpath_step_seconds") == {
        "+Inf": Exemplar(labels, 70.0, Timestamp(30, 0))
    }
    assert TRACE not in generate_latest(metrics).decode()


def test_without_traces_there_are_no_exemplars() -> None:
    metrics = Metrics()
    metrics.answered("Score", "OK", 0.004)
    assert not exemplars(metrics, "warmpath_request_seconds")
