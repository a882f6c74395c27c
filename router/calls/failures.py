"""How a call ends: the status and the reason of each error, counted with the call's time."""

import logging
import time
from collections.abc import Mapping
from typing import NamedTuple

import grpc

from warmpath.h2grpc.method import Refusal, RefusedError
from warmpath.prefixstore.chats.render_worker import RenderCrashedError, RenderTimeoutError
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from warmpath.prefixstore.workers import ClosedError, FullError
from warmpath.process.logs import shortened
from warmpath.proto.errors import Reason
from warmpath.router.admission.admission import BusyError
from warmpath.router.admission.in_flight import LateError, NoPlaceError
from warmpath.router.ending import Drain, EndingError
from warmpath.router.metrics.calls import Metrics
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.underway import PickEndedError
from warmpath.router.prompt.limits import BadRequestError, NoTokenizerError
from warmpath.router.prompt.models import UnknownModelError
from warmpath.router.queue.request import QueueFullError
from warmpath.router.transport.call import refused

log = logging.getLogger(__name__)

MOST_TEXT = 300
"""Most characters of an error's text in a status. It may quote the request, and gRPC limits all trailing
metadata to 8 KiB. A character may take 12 bytes as text of the status, and 6 more in its details."""

MOST_FIELD = 100
"""Most characters of a field's name in a status."""


class Failure(NamedTuple):
    """How a call ends."""

    code: grpc.StatusCode
    reason: "Reason.ValueType"
    retry_seconds: float | None = None
    """Seconds until a retry makes sense, unless the error has its own; None: not told."""


STATUS = grpc.StatusCode

FAILURES: Mapping[type[Exception], Failure] = {
    BadRequestError: Failure(STATUS.INVALID_ARGUMENT, Reason.BAD_REQUEST),
    NoTokenizerError: Failure(STATUS.INVALID_ARGUMENT, Reason.NO_TOKENIZER),
    UnknownModelError: Failure(STATUS.NOT_FOUND, Reason.UNKNOWN_MODEL),
    NoPodError: Failure(STATUS.UNAVAILABLE, Reason.NO_POD),
    QueueFullError: Failure(STATUS.RESOURCE_EXHAUSTED, Reason.QUEUE_FULL),
    PickEndedError: Failure(STATUS.ABORTED, Reason.PICK_ENDED),
    EndingError: Failure(STATUS.UNAVAILABLE, Reason.ENDING, 0.0),
    FullError: Failure(STATUS.RESOURCE_EXHAUSTED, Reason.TOKENIZER_FULL),
    ClosedError: Failure(STATUS.UNAVAILABLE, Reason.TOKENIZER_UNAVAILABLE),
    TokenizerUnavailableError: Failure(STATUS.UNAVAILABLE, Reason.TOKENIZER_UNAVAILABLE),
    # Unlike a long text, a chat that was not rendered in time has no tokens at all to answer for.
    RenderTimeoutError: Failure(STATUS.DEADLINE_EXCEEDED, Reason.RENDER_TIMEOUT),
    RenderCrashedError: Failure(STATUS.UNAVAILABLE, Reason.TOKENIZER_UNAVAILABLE),
    BusyError: Failure(STATUS.RESOURCE_EXHAUSTED, Reason.OVERLOADED),
    NoPlaceError: Failure(STATUS.RESOURCE_EXHAUSTED, Reason.OVERLOADED),
    LateError: Failure(STATUS.RESOURCE_EXHAUSTED, Reason.MESSAGE_LATE),
}

FAULT = Failure(STATUS.INTERNAL, Reason.INTERNAL_ERROR)
FAULT_TEXT = "the router has a fault; its log says more"


def failure_of(error: Exception) -> Failure:
    """Return how a call ends with an error; one that is not listed is a fault of the router."""
    return FAILURES.get(type(error), FAULT)


def reason_of(error: Exception) -> str:
    """Return the name of the reason with which a call ends because of an error."""
    return Reason.Name(failure_of(error).reason)


def text_of(error: Exception) -> str:
    """Return an error's text for its caller; the text of a fault stays in the log."""
    text = str(error) if type(error) in FAILURES else FAULT_TEXT
    # A lone surrogate of a request cannot be sent.
    return shortened(text, MOST_TEXT).encode(errors="replace").decode()


def refusal_of(
    error: Exception, text: str = "", *, retry_seconds: float | None = None, **facts: str
) -> Refusal:
    """Return the status of an error, with its own text unless `text` is given.

    `facts` are metadata for programs (`proto.errors.details`).
    """
    code, reason, usual_seconds = failure_of(error)
    if isinstance(error, BadRequestError):
        facts["field"] = shortened(error.field, MOST_FIELD).encode(errors="replace").decode()
    if isinstance(error, BusyError | QueueFullError):
        facts["limit"], usual_seconds = error.limit, error.seconds
    if retry_seconds is None:
        retry_seconds = usual_seconds
    return refused(code, text or text_of(error), reason, retry_seconds=retry_seconds, **facts)


class Answering:
    """A context in which a call is answered: it counts the call while it is open, and then its answer.

    Raises RefusedError, with its status and reason, in place of any error.
    """

    __slots__ = ("_begun", "_drain", "_meter", "_method")

    def __init__(self, method: str, drain: Drain, meter: Metrics) -> None:
        self._method = method
        self._drain = drain
        self._meter = meter

    def __enter__(self) -> None:
        self._begun = time.perf_counter()
        try:
            self._drain.begin()
        except EndingError as error:
            raise counted_refusal(self._method, error, self._begun, self._meter) from error

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._drain.end()
        if isinstance(error, Exception):
            raise counted_refusal(self._method, error, self._begun, self._meter) from error
        code = "OK" if error is None else grpc.StatusCode.CANCELLED.name
        self._meter.answered(self._method, code, time.perf_counter() - self._begun)


def counted_refusal(method: str, error: Exception, begun: float, meter: Metrics) -> RefusedError:
    """Count a call that began at `begun` (time.perf_counter) and failed; return its refusal."""
    log_fault(method, error)
    refusal = refusal_of(error)
    seconds = time.perf_counter() - begun
    meter.answered(method, refusal.code.name, seconds, reason_of(error))
    return RefusedError(refusal)


def log_fault(method: str, error: Exception) -> None:
    """Log a fault of the router: its caller gets no text of the error."""
    if type(error) not in FAILURES:
        log.error("%s: unexpected", method, exc_info=error)
