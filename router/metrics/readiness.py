"""The metrics of readiness: the router's own, and that of the pods that it knows."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from router.metrics.declared import gauge, single
from router.pods.table import PodTable
from router.readiness import Readiness


def readiness(router: Readiness) -> Iterator[Metric]:
    """Yield whether the router is ready, and whether each condition holds."""
    yield single("ready", float(router.ready()))
    conditions = gauge("ready_condition")
    for name, condition in router.report().items():
        required = "true" if router.requires(name) else "false"
        conditions.add_metric([name, required], float(condition.holds))
    yield conditions


def ready_pods(pods: PodTable) -> Iterator[Metric]:
    """Yield whether each pod is ready."""
    ready = gauge("pod_ready")
    for pod in pods:
        ready.add_metric([pod.id, pod.model], float(pod.serves and not pod.status.refuses))
    yield ready
