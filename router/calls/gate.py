"""Tells a transport which calls to refuse as soon as their headers have come."""

from collections.abc import Iterable, Mapping

from google.protobuf.descriptor import ServiceDescriptor

from warmpath.h2grpc.method import Refusal
from warmpath.router.admission.admission import Admission
from warmpath.router.calls.failures import refusal_of
from warmpath.router.calls.intake import too_busy
from warmpath.router.ending import Drain, EndingError
from warmpath.router.metrics.calls import Metrics


class AdmissionGate:
    """The `h2grpc.method.Gate` of some services. Streams pass: their messages wait.

    Once the `drain` refuses calls, it refuses those of all services but gRPC's own.
    """

    def __init__(
        self,
        admission: Admission,
        services: Iterable[ServiceDescriptor],
        urgent: frozenset[str],
        counts: Metrics,
        drain: Drain,
    ) -> None:
        self._admission = admission
        self._drain = drain
        self._at_end = refusal_of(EndingError())
        self.methods: Mapping[str, bool] = {
            f"/{service.full_name}/{method.name}": method.name in urgent
            for service in services
            for method in service.methods
            if not method.client_streaming
        }
        self._counts = counts

    @property
    def refusal(self) -> Refusal:
        seconds = self._admission.wait_seconds
        return too_busy(seconds, seconds)

    def rooms(self, client: str) -> tuple[int, int] | None:
        admission = self._admission
        if not admission.waiting:
            return None
        return admission.room(client), admission.room(client, is_urgent=True)

    def ending(self, method: str) -> Refusal | None:
        # Health is asked to the end.
        if method.startswith("/grpc.") or not self._drain.turns_away():
            return None
        return self._at_end

    def ended(self, method: str, refusal: Refusal, seconds: float) -> None:
        short = method.rpartition("/")[2]
        self._counts.answered(short, refusal.code.name, seconds, refusal.reason)

    def refused(self, method: str, count: int) -> None:
        self._admission.refused += count
        self._counts.refused(method.rpartition("/")[2], self.refusal.code.name, count)
