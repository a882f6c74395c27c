"""The metrics of readiness: the router's own, its certificates', its sources of pods and its pods."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import Metric

from warmpath.process.tls import ClientTls, ServerTls, expiries
from warmpath.router.metrics.declared import gauge, single
from warmpath.router.pods.source_state import SourceState
from warmpath.router.pods.table import PodTable
from warmpath.router.readiness import Readiness


def readiness(router: Readiness) -> Iterator[Metric]:
    """Yield whether the router is ready, and whether each condition holds."""
    yield single("ready", float(router.ready()))
    conditions = gauge("ready_condition")
    for name, condition in router.report().items():
        required = "true" if router.requires(name) else "false"
        conditions.add_metric([name, required], float(condition.holds))
    yield conditions


def certificates(tables: Mapping[str, ServerTls | ClientTls]) -> Iterator[Metric]:
    """Yield when the certificates end that a table of the configuration names, by table."""
    ends = gauge("certificate_expiry_timestamp_seconds")
    for table, tls in tables.items():
        for file, at in expiries(tls.pem):
            ends.add_metric([table, file], at)
    yield ends


def pod_sources(sources: Iterable[SourceState]) -> Iterator[Metric]:
    """Yield whether each source of pods can be asked, and how long it has been silent."""
    up, silence = gauge("pod_source_up"), gauge("pod_source_silence_seconds")
    for source in sources:
        up.add_metric([source.name], float(source.trouble is None))
        silence.add_metric([source.name], source.silence)
    yield up
    yield silence


def ready_pods(pods: PodTable) -> Iterator[Metric]:
    """Yield whether each pod is ready."""
    ready = gauge("pod_ready")
    for pod in pods:
        ready.add_metric([pod.id, pod.model], float(pod.serves and not pod.status.refuses))
    yield ready
