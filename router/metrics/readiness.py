"""The metrics of readiness: the router's own, and that of the pods that it knows."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from router.metrics.unlabelled import gauge
from router.pods.table import PodTable


def readiness(*, router: bool, pods: PodTable) -> Iterator[Metric]:
    """Yield whether the router is ready, and whether each pod is."""
    yield gauge("warmpath_ready", "1 if the router is ready, as /readyz says.", float(router))
    ready = GaugeMetricFamily(
        "warmpath_pod_ready",
        "1 if requests may be sent to the pod: it is well, and refuses none.",
        labels=["pod", "model"],
    )
    for pod in pods:
        ready.add_metric([pod.id, pod.model], float(pod.serves and not pod.status.refuses))
    yield ready
