"""The gRPC service of Envoy's external processing: `envoy.service.ext_proc.v3.ExternalProcessor`.

A stream drives one exchange: it reads events, writes replies, picks and reports.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial

import grpc

from warmpath.h2grpc.method import Method, RefusedError
from warmpath.process.loop import Begun
from warmpath.proto.errors import Reason
from warmpath.router.admission.admission import Admission
from warmpath.router.calls.failures import refusal_of
from warmpath.router.calls.intake import Waiter, begins
from warmpath.router.calls.report import ReportAnswerer
from warmpath.router.config.schema import EndpointPickerTable
from warmpath.router.ending import Drain, EndingError
from warmpath.router.endpoint_picker.events import (
    Action,
    ImmediateReply,
    MessageError,
    NeedsExchangeError,
    NoPick,
    OrderError,
    Outcome,
    Patience,
    Picked,
    Reply,
    WantPick,
    failure_of,
)
from warmpath.router.endpoint_picker.exchange import Exchange
from warmpath.router.endpoint_picker.messages import bytes_of, event_of
from warmpath.router.endpoint_picker.pick import EndpointPicks
from warmpath.router.endpoint_picker.protocol import SERVICE, names_of
from warmpath.router.metrics.calls import Metrics
from warmpath.router.pick.eligible import NoPodError
from warmpath.router.pick.report import Report
from warmpath.router.prompt.limits import BadRequestError
from warmpath.router.queue.request import Asker
from warmpath.router.tracing.steps import NO_SPAN, NO_TRACER, Span, Tracer, request_id_of
from warmpath.router.transport.call import Answering, Call, refused

log = logging.getLogger(__name__)

MOST_UNSENT_BYTES = 64 << 10
"""Bytes of replies that may wait for the gateway while further events are handled."""
FIRST = 2
"""The number of replies that tell a pick: to the headers, and with the first piece of the body."""

METHOD = "Process"
FULL_NAME = f"{SERVICE}/{METHOD}"
ATTRIBUTES = {"rpc.system.name": "grpc", "rpc.method": FULL_NAME}
WAITING = 0.8
"""Share of the time for a pick that may be spent on waits; the rest is for computing."""

PATIENCE_SECONDS = 3600.0
"""How long a gateway is asked to wait while a request waits for a pod, whose limit is
queue.cold-start-seconds."""
BODY_SECONDS = 30.0
"""Maximum wait for the end of a body; then load alone decides."""
MOST_HELD_BYTES = 128 << 20
"""Maximum bytes of all bodies that wait for their end or their pick; load alone decides beyond it."""


class Stream:
    """One stream, in one task."""

    def __init__(self, call: Call, desk: "EndpointPickerService", tracer: Tracer) -> None:
        self.exchange = desk.exchange()
        self._tracer = tracer
        self._begun = time.perf_counter()
        self._span: Span = NO_SPAN
        """The span of the exchange, from its pick on: only then it is known whose trace it is in."""
        self._call = call
        self._desk = desk
        self._held = 0
        """Bytes of this stream in the desk's count of held bytes."""
        self._due: asyncio.TimerHandle | None = None
        """Fires when the stream no longer waits for the request's body."""
        self._late: asyncio.Task[None] | None = None
        """The pick for as much of the body as had come by then."""

    def next_at_hand(self) -> bytes | None:
        """Return the next message if `read` would not wait; else None."""
        return None if self._late is not None else self._call.take()

    async def read(self) -> bytes | None:
        """Return the next message; None after the last. While the body is held, wait for a while only.

        Raises CancelledError if the stream has ended.
        """
        if self._due is None and self.exchange.request.holds:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(self._desk.body_seconds, self._hold_no_more)
        message = await self._call.read()
        if self._late is not None:
            await self._late
            self._late = None
        return message

    def _hold_no_more(self) -> None:
        # A task of its own, since a read that is under way cannot be given up.
        if actions := self.exchange.request.hold_no_more():
            self._late = asyncio.ensure_future(self._act(actions))

    async def take(self, raw: bytes) -> None:
        """Handle a message. Raises OrderError and MessageError: the gateway is at fault."""
        actions = self.exchange.receive(event_of(raw))
        if not self._count_held() and not actions:
            actions = self.exchange.request.hold_no_more()
        await self._act(actions)
        self._count_held()

    async def close(self) -> None:
        """Send the last reports, and release the held bytes."""
        if self._due is not None:
            self._due.cancel()
        try:
            if self._late is not None:
                self._late.cancel()
                await asyncio.wait((self._late,))
        finally:
            reports = self.exchange.closed()
            self._count_held()
            for report in reports:
                self._report(report)
            self._span.end()

    def _count_held(self) -> bool:
        """Count the bytes that are held; return whether those of all streams are within their limit."""
        change = self.exchange.request.held_bytes - self._held
        self._held += change
        self._desk.held_bytes += change
        return not change or self._desk.held_bytes <= self._desk.max_held_bytes

    async def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, WantPick):
                await self._pick(action)
            elif isinstance(action, Report):
                self._report(action)
            else:
                await self._write(action)

    def _report(self, report: Report) -> None:
        try:
            self._desk.reports.take(report)
        except BadRequestError as error:
            # The pod has gone since the pick, for example.
            log.info("a report on a pick was refused: %s", error)
        self._span.event(report.event)

    async def _write(self, reply: Reply | ImmediateReply | Patience) -> None:
        """Write a reply, which goes out with those that follow before the next wait for the gateway."""
        if self._call.put(bytes_of(reply)) > MOST_UNSENT_BYTES:
            await self._call.drain()

    async def _pick(self, want: WantPick) -> None:
        if self._tracer.is_on:
            # The gateway's own span, where it has one, and else the client's.
            carrier = [*want.headers.items(), *self._call.metadata]
            ago = time.perf_counter() - self._begun
            self._span = self._tracer.call(FULL_NAME, carrier, ATTRIBUTES, ago=ago)
        with self._span.active():
            await self._pick_and_tell(want)

    async def _pick_and_tell(self, want: WantPick) -> None:
        replies: Sequence[Reply | ImmediateReply] = ()

        async def tell(made: Picked | NoPick | None) -> None:
            nonlocal replies
            request = self.exchange.request
            if isinstance(made, Picked):
                replies = request.picked(made)
            else:
                replies = self.exchange.refused(made) if made else request.let_through()
            for reply in replies[:FIRST]:
                await self._write(reply)
            await self._call.drain()

        asker = Asker(self._call.peer, self._call, request_id_of(want.headers.items()))
        picked = await self._desk.answer(
            METHOD, want, asker, tell, waiting=self._waiting, span=self._span
        )
        if picked is not None:
            self.exchange.response.booked(picked)
        for reply in replies[FIRST:]:
            await self._write(reply)

    @asynccontextmanager
    async def _waiting(self, seconds: float) -> AsyncIterator[None]:
        """Ask the gateway to wait so long; what is held meanwhile counts among the waiting requests."""
        await self._write(Patience(seconds))
        await self._call.drain()
        self._desk.held_bytes -= self._held
        try:
            yield
        finally:
            self._desk.held_bytes += self._held


class EndpointPickerService:
    """Serves gateways: a stream for each HTTP exchange."""

    def __init__(
        self,
        picks: EndpointPicks,
        reports: ReportAnswerer,
        config: EndpointPickerTable,
        *,
        meter: Metrics,
        drain: Drain,
        admission: Admission,
        most_body_bytes: int,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Hold at most `most_body_bytes` of each body."""
        self.may_let_through = config.failure_mode == "fail-open"
        """Whether a request goes on without a pick if the pick failed through the router's fault."""
        self.pick_seconds = config.pick_seconds
        self.watched_share = config.watched_share
        """Share of streamed answers, 0 to 1, whose usage the gateway reads (`is_read_whole`)."""
        self.body_seconds = BODY_SECONDS
        self.max_held_bytes = MOST_HELD_BYTES
        self.held_bytes = 0
        """Bytes of bodies that wait for their end or their pick."""
        self.streams = 0
        """Number of open streams."""
        self.tracer = tracer
        self.picks = picks
        self.reports = reports
        self.meter = meter
        self.drain = drain
        self._admission = admission
        self.ours = config.headers
        self.most_body_bytes = most_body_bytes
        self.exchange = partial(
            Exchange, names_of(config.headers), most_body_bytes, is_shadow=picks.is_shadow
        )
        """Makes an `Exchange` for a new stream."""

    async def process(self, call: Call) -> None:
        """Drive an exchange; all messages are bytes. Raises RefusedError."""
        stream = Stream(call, self, self.tracer)
        self.streams += 1
        try:
            with self.drain.streaming():
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
                raw = await self.drain.before_end(stream.read)
            elif raw is None:
                raw = await stream.read()
            if raw is None:
                return
            await stream.take(raw)

    async def answer(
        self,
        method: str,
        want: WantPick,
        asker: Asker,
        tell: Callable[[Picked | NoPick | None], Awaitable[None]],
        *,
        answering: Answering | None = None,
        waiting: Callable[[float], AbstractAsyncContextManager[None]] | None = None,
        span: Span = NO_SPAN,
    ) -> Picked | None:
        """Pick when the router has its turn, and return the pick once the gateway was told of it.

        `tell` gets the pick, which is withdrawn if that fails, or the refusal; None lets the request go
        on without a pick. `answering` is as in `EndpointPicks.pick`; metrics count the call as one of
        `method`. While the request waits for a pod, the context `waiting` is open, which is given the
        most seconds of that; None: the gateway asks in one call. Raises NeedsExchangeError, which is not
        counted, and the errors of `tell`.
        """
        begun = time.perf_counter()
        outcome: Outcome | None = Outcome.GONE
        reason, picked = "", None
        try:
            try:
                try:
                    picked, telling = await self._pick(want, asker, answering)
                except NoPodError as error:
                    await self._for_a_pod(error, want, asker, waiting)
                    picked, telling = await self._pick(want, asker, answering)
            except NeedsExchangeError:
                outcome = None
                raise
            except Exception as error:
                failure = failure_of(error, self.pick_seconds)
                if failure.outcome is Outcome.FAULT:
                    log.exception("a pick failed")
                await tell(None if failure.is_ours and self.may_let_through else failure)
                outcome, reason = failure.outcome, failure.reason
            else:
                with telling:
                    await tell(picked)
                outcome = Outcome.PICKED
        finally:
            if outcome is not None:
                if span is not NO_SPAN:
                    span.set({"warmpath.outcome": outcome.label})
                    span.ends_with(outcome.code)
                seconds = time.perf_counter() - begun
                self.meter.answered(method, outcome.code, seconds, reason)
                self.meter.endpoint_picked(outcome.label)
        return picked

    async def _for_a_pod(
        self,
        error: NoPodError,
        want: WantPick,
        asker: Asker,
        waiting: Callable[[float], AbstractAsyncContextManager[None]] | None,
    ) -> None:
        """Return once a pod may be picked; raise the error if the request may not wait for that."""
        if want.is_shadow or not self.picks.may_wait(error):
            raise error
        if waiting is None:
            raise NeedsExchangeError from error
        async with waiting(PATIENCE_SECONDS):
            await self.picks.for_a_pod(error, want, asker)

    async def _pick(
        self, want: WantPick, asker: Asker, answering: Answering | None
    ) -> tuple[Picked, AbstractContextManager[None]]:
        admission = self._admission
        is_free, arrived = admission.is_free, time.perf_counter()
        if not is_free and (wait := begins(admission, Waiter(), asker.client, is_read=True)):
            await wait
        try:
            pick = Begun(self.picks.pick(want, WAITING * self.pick_seconds, asker, answering))
        finally:
            if is_free:
                admission.answered_at_once(time.perf_counter() - arrived)
        return pick.result if pick.is_over else await pick.within(self.pick_seconds)

    def methods(self) -> dict[str, Method]:
        """Return the only method by its full name; all messages are bytes."""
        return {f"/{FULL_NAME}": Method(self.process)}
