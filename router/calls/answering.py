"""A call while it is answered: it is counted, and its errors become statuses."""

import logging
import time
from typing import Self

import grpc

from warmpath.h2grpc.method import RefusedError
from warmpath.router.calls.failures import FAILURES, reason_of, refusal_of
from warmpath.router.ending import Drain, EndingError
from warmpath.router.metrics.calls import Metrics

log = logging.getLogger(__name__)


class Answering:
    """Counts a call while it is answered, and then its answer.

    Raises RefusedError, with its status and reason, in place of any error. A call that is `put_off` is
    answered another way, and counted there.
    """

    __slots__ = ("_begun", "_drain", "_meter", "_method", "put_off")

    def __init__(self, method: str, drain: Drain, meter: Metrics) -> None:
        self._method = method
        self._drain = drain
        self._meter = meter
        self.put_off = False

    def __enter__(self) -> Self:
        self._begun = time.perf_counter()
        try:
            self._drain.begin()
        except EndingError as error:
            raise self._refused(error) from error
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._drain.end()
        if error is None:
            if not self.put_off:
                self._meter.answered(self._method, "OK", time.perf_counter() - self._begun)
        elif isinstance(error, Exception):
            raise self._refused(error) from error
        else:
            self._count(grpc.StatusCode.CANCELLED)

    def _refused(self, error: Exception) -> RefusedError:
        log_fault(self._method, error)
        refusal = refusal_of(error)
        self._count(refusal.code, reason_of(error))
        return RefusedError(refusal)

    def _count(self, code: grpc.StatusCode, reason: str = "") -> None:
        seconds = time.perf_counter() - self._begun
        self._meter.answered(self._method, code.name, seconds, reason)


def log_fault(method: str, error: Exception) -> None:
    """Log a fault of the router: its caller gets no text of the error."""
    if type(error) not in FAILURES:
        log.error("%s: unexpected", method, exc_info=error)
