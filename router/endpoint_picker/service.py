"""The gRPC service of Envoy's external processing: `envoy.service.ext_proc.v3.ExternalProcessor`."""

import asyncio
import logging
from contextlib import AbstractContextManager
from typing import Protocol

import grpc

from warmpath.h2grpc.method import Method, RefusedError
from warmpath.proto.errors import Reason
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.proto.report_event import EVENTS
from warmpath.router.admission.admission import Admission
from warmpath.router.calls.failures import refusal_of
from warmpath.router.calls.report import ReportAnswerer
from warmpath.router.config.schema import EndpointPickerTable
from warmpath.router.ending import Drain, EndingError
from warmpath.router.endpoint_picker.actions import Picked, WantPick, WantReport
from warmpath.router.endpoint_picker.events import MessageError, OrderError
from warmpath.router.endpoint_picker.exchange import Exchange
from warmpath.router.endpoint_picker.outcomes import CODES, Outcome
from warmpath.router.endpoint_picker.pick import EndpointPicks
from warmpath.router.endpoint_picker.protocol import SERVICE, names_of
from warmpath.router.endpoint_picker.stream import Stream
from warmpath.router.prompt.bad_request import BadRequestError
from warmpath.router.queue.request import Asker
from warmpath.router.tracing.tracer import NO_TRACER, Tracer
from warmpath.router.transport.call import Call, refused

log = logging.getLogger(__name__)

METHOD = "Process"
WAITING = 0.8
"""Share of the time for a pick that may be spent on waits; the rest is for computing."""

BODY_SECONDS = 30.0
"""Maximum wait for the end of a body; then load alone decides."""
MOST_HELD_BYTES = 128 << 20
"""Maximum bytes of all bodies that wait for their end or their pick; load alone decides beyond it."""


class PickerMeter(Protocol):
    """The service's metrics."""

    def answered(self, method: str, code: str, seconds: float, reason: str = "") -> None:
        """Count one answer, with its status code and duration, and the reason if it is a refusal."""

    def endpoint_picked(self, outcome: str) -> None:
        """Count a request that asked for a pick."""


class EndpointPickerService:
    """Serves gateways: a stream for each HTTP exchange."""

    def __init__(
        self,
        picks: EndpointPicks,
        reports: ReportAnswerer,
        config: EndpointPickerTable,
        *,
        meter: PickerMeter,
        drain: Drain,
        admission: Admission,
        most_body_bytes: int,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Hold at most `most_body_bytes` of each body."""
        self.may_let_through = config.failure_mode == "fail-open"
        self.pick_seconds = config.pick_seconds
        self.body_seconds = BODY_SECONDS
        self.max_held_bytes = MOST_HELD_BYTES
        self.held_bytes = 0
        """Bytes of bodies that wait for their end or their pick."""
        self.streams = 0
        """Number of open streams."""
        self._tracer = tracer
        self.picks = picks
        self._reports = reports
        self._meter = meter
        self._drain = drain
        self._admission = admission
        self._names = names_of(config.headers)
        self._most_body_bytes = most_body_bytes

    async def process(self, call: Call) -> None:
        """Drive an exchange; all messages are bytes. Raises RefusedError."""
        exchange = Exchange(self._names, self._most_body_bytes)
        stream = Stream(exchange, call, self, self._tracer)
        self.streams += 1
        try:
            with self._drain.streaming():
                await self._drive(stream)
        except EndingError as error:
            # After that reply the gateway goes on alone.
            if not stream.exchange.is_settled:
                raise RefusedError(refusal_of(error)) from None
        except (OrderError, MessageError) as error:
            code, reason = grpc.StatusCode.INVALID_ARGUMENT, Reason.BAD_REQUEST
            raise RefusedError(refused(code, str(error), reason)) from error
        finally:
            self.streams -= 1
            await stream.close()

    async def _drive(self, stream: Stream) -> None:
        exchange = stream.exchange
        while not exchange.is_over:
            raw = stream.next_at_hand()
            if raw is None and exchange.may_end:
                raw = await self._drain.before_end(stream.read)
            elif raw is None:
                raw = await stream.read()
            if raw is None:
                return
            await stream.take(raw)

    async def pick(
        self, want: WantPick, asker: Asker
    ) -> tuple[Picked, AbstractContextManager[None]]:
        """Wait for the router's turn and pick; the caller replies to the gateway within the context.

        Raises BusyError, TimeoutError and the errors of `EndpointPicks.pick`.
        """
        await _turn(self._admission, asker.client)
        async with asyncio.timeout(self.pick_seconds):
            return await self.picks.pick(want, WAITING * self.pick_seconds, asker)

    async def report(self, report: WantReport) -> None:
        """Report a request's progress."""
        request = pb.ReportRequest(
            booking_id=report.booking_id,
            event=EVENTS[report.event],
            cached_tokens=report.cached_tokens,
            prompt_tokens=report.prompt_tokens,
            output_tokens=report.output_tokens,
        )
        if report.where is not None:
            request.pod, request.rank = report.where.pod, report.where.rank
        try:
            await self._reports.report(request, is_refusal=report.is_refusal)
        except BadRequestError as error:
            # The pod has gone since the pick, for example.
            log.info("a report on a pick was refused: %s", error)

    def hold(self, change: int) -> bool:
        """Change the count of held bytes by `change`; return whether it is within its limit."""
        self.held_bytes += change
        return self.held_bytes <= self.max_held_bytes

    def picked(self, outcome: Outcome, seconds: float, reason: str) -> None:
        """Count a request that asked for a pick; `reason` says why it got none, empty for no refusal."""
        self._meter.answered(METHOD, CODES[outcome].name, seconds, reason)
        self._meter.endpoint_picked(outcome.value)

    def methods(self) -> dict[str, Method]:
        """Return the only method by its full name; all messages are bytes."""
        return {f"/{SERVICE}/{METHOD}": Method(self.process)}


async def _turn(admission: Admission, client: str) -> None:
    """Wait until the work on a pick may begin. Raises BusyError."""
    begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(error: Exception | None) -> None:
        if begins.done():
            return
        if error is None:
            begins.set_result(None)
        else:
            begins.set_exception(error)

    turn = admission.enter(client, wake, is_read=True)
    if not turn.begins:
        try:
            await begins
        finally:
            admission.leave(turn)
