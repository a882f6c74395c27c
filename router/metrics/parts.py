"""The metrics that the router's parts keep themselves, read at each scrape."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from indexer.ingest import Ingest
from router.api.admission.admission import Admission
from router.api.in_flight import InFlight
from router.diagnosis.attribution import Attribution
from router.endpoint_picker.service import EndpointPickerService
from router.metrics.picks import picks, queued
from router.metrics.ranks import ranks
from router.metrics.readiness import readiness, ready_pods
from router.metrics.shared_index import copies, look_ups, written
from router.metrics.texts import texts
from router.metrics.unlabelled import counter, gauge
from router.pick.picking import Picking
from router.pods.shared_index import SharedPods
from router.pods.table import PodTable
from router.prompt.tokenising.assemble import Texts
from router.queue.held_picks import HeldPicks
from router.readiness import Readiness


class PartsCollector(Collector):
    """Reads every part."""

    def __init__(
        self,
        ingest: Ingest,
        texts: Texts,
        picking: Picking,
        attribution: Attribution,
        rooms: Sequence[InFlight],
        *,
        readiness: Readiness,
        pods: PodTable,
        admission: Admission,
        endpoint_picker: EndpointPickerService,
        held: HeldPicks | None = None,
        shared: SharedPods | None = None,
    ) -> None:
        self._pods = pods
        self._shared = shared
        self._endpoint_picker = endpoint_picker
        self._held = held
        self._ingest = ingest
        self._texts = texts
        self._picking = picking
        self._attribution = attribution
        self._readiness = readiness
        self._admission = admission
        self._rooms = rooms
        """The room for the messages of calls, and the room for those of streams."""

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering does not read every part; the names are unique."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read every part."""
        yield from readiness(self._readiness)
        yield from ready_pods(self._pods)
        yield from ranks(self._ingest)
        stats = self._ingest.index.stats()
        yield gauge("warmpath_index_keys", "Distinct blocks in the index.", stats.keys)
        yield gauge("warmpath_index_entries", "Pairs of block and slot.", stats.entries)
        yield gauge("warmpath_index_slots", "Slots that hold any block.", stats.slots)
        yield gauge("warmpath_index_bytes", "Bytes that the index takes.", stats.bytes)
        yield gauge(
            "warmpath_index_max_bytes", "Most bytes that the index may take.", stats.max_bytes
        )
        yield counter(
            "warmpath_index_evicted_keys", "Blocks evicted for lack of room.", stats.evicted
        )
        yield from texts(self._texts)
        yield from self._in_flight()
        yield from self._admitted()
        if self._held is not None:
            yield from queued(self._held)
        yield from picks(self._picking, self._attribution)
        picker = self._endpoint_picker
        yield gauge(
            "warmpath_endpoint_picker_streams", "Gateways' exchanges in progress.", picker.streams
        )
        yield gauge(
            "warmpath_endpoint_picker_held_bytes",
            "Bytes of requests' bodies that wait for their end or their pick.",
            picker.held_bytes,
        )
        yield gauge(
            "warmpath_endpoint_picker_max_held_bytes",
            "Most bytes of bodies that may wait.",
            picker.max_held_bytes,
        )
        if self._shared is not None and self._shared.replica is not None:
            yield from copies(self._shared.replica)
        if self._shared is not None and self._shared.writing is not None:
            yield from written(self._shared.writing.writers)
        if self._ingest.remote is not None:
            yield from look_ups(self._ingest.remote)

    def _admitted(self) -> Iterator[Metric]:
        admission = self._admission
        yield gauge(
            "warmpath_waiting_calls",
            "Calls that wait for the thread that answers.",
            admission.waiting,
        )
        yield gauge(
            "warmpath_waiting_max_calls", "Most calls that may wait now.", admission.most_waiting
        )
        yield counter("warmpath_busy_refused", "Calls refused: too many waited.", admission.refused)

    def _in_flight(self) -> Iterator[Metric]:
        kept, most, waiting, refused, late = (
            sum(figures)
            for figures in zip(
                *((of.bytes, of.limit, of.waiting, of.refused, of.late) for of in self._rooms),
                strict=True,
            )
        )
        yield gauge("warmpath_in_flight_bytes", "Bytes reserved for messages.", kept)
        yield gauge("warmpath_in_flight_max_bytes", "Most bytes that may be reserved.", most)
        yield gauge("warmpath_in_flight_waiting_calls", "Calls that wait for room.", waiting)
        yield counter("warmpath_in_flight_refused", "Calls refused: too many waited.", refused)
        yield counter("warmpath_in_flight_late", "Calls ended: their message was late.", late)
