"""The metrics of readiness: the router's own, and that of the pods that it knows."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from router.metrics.unlabelled import gauge
from router.pods.table import PodTable
from router.readiness import Readiness


def readiness(router: Readiness) -> Iterator[Metric]:
    """Yield whether the router is ready, and whether each condition holds."""
    yield gauge(
        "warmpath_ready", "1 if the router is ready, as /readyz says.", float(router.ready())
    )
    conditions = GaugeMetricFamily(
        "warmpath_ready_condition",
        "1 if the condition holds; server.ready says which are required.",
        labels=["condition", "required"],
    )
    for name, condition in router.report().items():
        required = "true" if router.requires(name) else "false"
        conditions.add_metric([name, required], float(condition.holds))
    yield conditions


def ready_pods(pods: PodTable) -> Iterator[Metric]:
    """Yield whether each pod is ready."""
    ready = GaugeMetricFamily(
        "warmpath_pod_ready",
        "1 if requests may be sent to the pod: it is well, and refuses none.",
        labels=["pod", "model"],
    )
    for pod in pods:
        ready.add_metric([pod.id, pod.model], float(pod.serves and not pod.status.refuses))
    yield ready
