"""The metrics that the router's parts keep themselves, read at each scrape.

Also the metrics of readiness: the router's own, its certificates', its sources of pods and its pods.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from warmpath.indexer.ranks import Ingest
from warmpath.process.command_line import version
from warmpath.process.tls import ClientTls, ServerTls, expiries
from warmpath.router.admission.admission import Admission
from warmpath.router.admission.in_flight import InFlight
from warmpath.router.diagnosis.attribution import Attribution
from warmpath.router.diagnosis.decision_log import DecisionLog
from warmpath.router.endpoint_picker.service import EndpointPickerService
from warmpath.router.metrics.declared import metric, single
from warmpath.router.metrics.picks import picks, queued, texts
from warmpath.router.metrics.ranks import copies, loads, look_ups, poll_age, ranks
from warmpath.router.pick.picking import Picking
from warmpath.router.pods.discover import SourceState
from warmpath.router.pods.shared_index import SharedPods
from warmpath.router.pods.table import PodTable
from warmpath.router.prompt.texts import Texts
from warmpath.router.queue.held_picks import HeldPicks
from warmpath.router.readiness import Readiness


def readiness(router: Readiness) -> Iterator[Metric]:
    """Yield whether the router is ready, and whether each condition holds."""
    yield single("ready", float(router.ready()))
    conditions = (
        ([name, "true" if router.requires(name) else "false"], float(condition.holds))
        for name, condition in router.report().items()
    )
    yield metric("ready_condition", conditions)


def certificates(tables: Mapping[str, ServerTls | ClientTls]) -> Iterator[Metric]:
    """Yield when the certificates end that a table of the configuration names, by table."""
    ends = (([table, file], at) for table, tls in tables.items() for file, at in expiries(tls.pem))
    yield metric("certificate_expiry_timestamp_seconds", ends)


def pod_sources(sources: Iterable[SourceState]) -> Iterator[Metric]:
    """Yield metrics of the sources of pods: whether each answers, and how long it has been silent."""
    up = [([source.name], float(source.trouble is None)) for source in sources]
    yield metric("pod_source_up", up)
    yield metric(
        "pod_source_silence_seconds", [([source.name], source.silence) for source in sources]
    )


def ready_pods(pods: PodTable) -> Iterator[Metric]:
    """Yield whether each pod is ready."""
    ready = (([pod.id, pod.model], float(pod.serves and not pod.status.refuses)) for pod in pods)
    yield metric("pod_ready", ready)


@dataclass(slots=True)
class Parts:
    """Reads every part."""

    ingest: Ingest
    texts: Texts
    picking: Picking
    attribution: Attribution
    rooms: Sequence[InFlight]
    """The room for the messages of calls, and the room for those of streams."""
    readiness: Readiness
    pods: PodTable
    admission: Admission
    endpoint_picker: EndpointPickerService
    decision_log: DecisionLog | None
    held: HeldPicks | None
    shared: SharedPods | None
    sources: Sequence[SourceState]
    tls: Mapping[str, ServerTls | ClientTls]
    """Certificates by the table of the configuration that names them."""

    def steps(self) -> Iterator[Metric | None]:
        """Read every part. A None says that other work may be done before the next step."""
        yield metric("build_info", [([version()], 1)])
        yield from readiness(self.readiness)
        yield from certificates(self.tls)
        yield from pod_sources(self.sources)
        yield from ready_pods(self.pods)
        yield from ranks(self.ingest)
        yield from loads(self.ingest, self.picking.loads)
        stats = self.ingest.index.stats()
        for name in ("keys", "entries", "slots", "bytes", "max_bytes"):
            yield single(f"index_{name}", getattr(stats, name))
        yield single("index_evicted_keys", stats.evicted)
        yield from texts(self.texts)
        yield from self._in_flight()
        admission = self.admission
        yield single("waiting_calls", admission.waiting)
        yield single("waiting_max_calls", admission.most_waiting)
        yield single("busy_refused", admission.refused)
        if self.held is not None:
            yield from queued(self.held)
        yield from picks(self.picking, self.attribution)
        yield single("decisions_lost", self.decision_log.lost if self.decision_log else 0)
        for name in ("streams", "held_bytes", "max_held_bytes"):
            yield single(f"endpoint_picker_{name}", getattr(self.endpoint_picker, name))
        replica = self.shared.replica if self.shared is not None else None
        yield from poll_age(replica, self.ingest.remote)
        if replica is not None:
            yield from copies(replica)
        if self.ingest.remote is not None:
            yield from look_ups(self.ingest.remote)

    def _in_flight(self) -> Iterator[Metric]:
        for name, field in (
            ("bytes", "bytes"),
            ("max_bytes", "limit"),
            ("waiting_calls", "waiting"),
            ("refused", "refused"),
            ("late", "late"),
        ):
            yield single(f"in_flight_{name}", sum(getattr(room, field) for room in self.rooms))
