"""Tells a transport which calls to refuse as soon as their headers have come."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from google.protobuf.descriptor import ServiceDescriptor

from warmpath.h2grpc.method import Refusal
from warmpath.router.admission.admission import Admission, LongestWait
from warmpath.router.ending import Drain


class RefusedCalls(Protocol):
    """Counts calls that are refused before anything but their headers is read."""

    def refused(self, method: str, code: str, count: int) -> None:
        """Count refused calls."""

    def answered(self, method: str, code: str, seconds: float, reason: str = "") -> None:
        """Count a call that was let through and ended later, and its duration."""


class AdmissionGate:
    """The `h2grpc.method.Gate` of some services. Streams pass: their messages wait.

    `refusal` returns the status of a BusyError with these values; `at_end` is that of all services but
    gRPC's own once the `drain` refuses calls.
    """

    def __init__(
        self,
        admission: Admission,
        services: Iterable[ServiceDescriptor],
        urgent: frozenset[str],
        refusal: Callable[[LongestWait, float], Refusal],
        counts: RefusedCalls,
        *,
        drain: Drain,
        at_end: Refusal,
    ) -> None:
        self._admission = admission
        self._drain = drain
        self._at_end = at_end
        self._names = {
            f"/{service.full_name}/{method.name}": method.name
            for service in services
            for method in service.methods
            if not method.client_streaming
        }
        self.methods: Mapping[str, bool] = {
            path: name in urgent for path, name in self._names.items()
        }
        self._refusal = refusal
        self._counts = counts

    @property
    def refusal(self) -> Refusal:
        """The status of the calls that it refuses now."""
        return self._refusal(self._admission.longest_wait, self._admission.wait_seconds)

    def rooms(self, client: str) -> tuple[int, int] | None:
        """Return how many calls of a client may begin: others, and urgent ones; None: any number."""
        admission = self._admission
        if admission.is_open:
            return None
        return admission.room(client), admission.room(client, is_urgent=True)

    def ending(self, method: str) -> Refusal | None:
        """Return the status of a call that may not begin, since the router ends; None: it may."""
        # Health is asked to the end.
        if method.startswith("/grpc.") or not self._drain.turns_away():
            return None
        return self._at_end

    def ended(self, method: str, refusal: Refusal, seconds: float) -> None:
        """Count a call that was ended since its message had not come."""
        short = method.rpartition("/")[2]
        self._counts.answered(short, refusal.code.name, seconds, refusal.reason)

    def refused(self, method: str, count: int) -> None:
        """Count calls that were refused."""
        self._admission.gave_way(count)
        self._counts.refused(self._names[method], self.refusal.code.name, count)
