"""Drives one exchange over one gRPC stream: reads events, writes replies, picks and reports."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from warmpath.router.endpoint_picker.actions import Action, Picked, Reply, WantPick, WantReport
from warmpath.router.endpoint_picker.exchange import Exchange
from warmpath.router.endpoint_picker.messages import bytes_of, event_of
from warmpath.router.endpoint_picker.outcomes import CODES, NoPick, Outcome, failure_of
from warmpath.router.endpoint_picker.protocol import SERVICE
from warmpath.router.queue.request import Asker
from warmpath.router.tracing.steps import request_id_of
from warmpath.router.tracing.tracer import NO_TRACER, CallSpan, Tracer
from warmpath.router.transport.call import Call

log = logging.getLogger(__name__)

MOST_UNSENT_BYTES = 64 << 10
"""Bytes of replies that may wait for the gateway while further events are handled."""
FIRST = 2
"""Replies with which a pick is told: that to the headers, and the first piece of the body."""

METHOD = f"{SERVICE}/Process"
ATTRIBUTES = {"rpc.system.name": "grpc", "rpc.method": METHOD}


class Desk(Protocol):
    """The part of the service that its streams share."""

    may_let_through: bool
    """Whether a request goes on without a pick if the pick failed through the router's fault."""
    pick_seconds: float
    body_seconds: float

    async def pick(
        self, want: WantPick, asker: Asker
    ) -> tuple[Picked, AbstractContextManager[None]]:
        """Wait for the router's turn and pick; the caller replies to the gateway within the context."""

    async def report(self, report: WantReport) -> None:
        """Report a request's progress."""

    def hold(self, change: int) -> bool:
        """Change the count of held bytes by `change`; return whether it is within its limit."""

    def picked(self, outcome: Outcome, seconds: float, reason: str) -> None:
        """Count a request that asked for a pick; `reason` says why it got none, empty for no refusal."""


class Stream:
    """One stream, in one task."""

    def __init__(
        self, exchange: Exchange, call: Call, desk: Desk, tracer: Tracer = NO_TRACER
    ) -> None:
        self.exchange = exchange
        self._tracer = tracer
        self._begun = time.perf_counter() if tracer.is_on else 0.0
        self._span: CallSpan | None = None
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
        """Return the next message if `read` would not wait."""
        return None if self._late is not None else self._call.take()

    async def read(self) -> bytes | None:
        """Return the next message; None after the last. While the body is held, wait for a while only.

        Raises CancelledError if the stream has ended.
        """
        if self._due is None and self.exchange.holds:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(self._desk.body_seconds, self._hold_no_more)
        message = await self._call.read()
        if self._late is not None:
            await self._late
            self._late = None
        return message

    def _hold_no_more(self) -> None:
        # A task of its own, since a read that is under way cannot be given up.
        if actions := self.exchange.hold_no_more():
            self._late = asyncio.ensure_future(self._act(actions))

    async def take(self, raw: bytes) -> None:
        """Handle a message. Raises OrderError and MessageError: the gateway is at fault."""
        actions = self.exchange.receive(event_of(raw))
        if self._count_held():
            await self._act(actions)
        else:
            await self._act(actions or self.exchange.hold_no_more())
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
                await self._report(report)
            if self._span is not None:
                self._span.end()

    def _count_held(self) -> bool:
        change = self.exchange.held_bytes - self._held
        self._held += change
        return self._desk.hold(change) if change else True

    async def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, WantPick):
                await self._pick(action)
            elif isinstance(action, WantReport):
                await self._report(action)
            else:
                await self._write(action)

    async def _report(self, report: WantReport) -> None:
        await self._desk.report(report)
        if self._span is not None:
            self._span.event(report.event)

    async def _write(self, reply: Reply) -> None:
        """Write a reply, which goes out with those that follow before the next wait for the gateway."""
        if self._call.put(bytes_of(reply)) > MOST_UNSENT_BYTES:
            await self._call.drain()

    async def _pick(self, want: WantPick) -> None:
        if not self._tracer.is_on:
            await self._pick_and_tell(want)
            return
        # The gateway's own span, where it has one, and else the client's.
        carrier = [*want.headers.items(), *self._call.metadata]
        ago = time.perf_counter() - self._begun
        self._span = self._tracer.call(METHOD, carrier, ATTRIBUTES, ago=ago)
        with self._span.active():
            await self._pick_and_tell(want)

    async def _pick_and_tell(self, want: WantPick) -> None:
        begun = time.perf_counter()
        outcome, reason, replies = Outcome.GONE, "", list[Reply]()
        try:
            found = await self._found(want)
            if isinstance(found, NoPick):
                replies = self._unpicked(found)
                for reply in replies[:FIRST]:
                    await self._write(reply)
                await self._call.drain()
                outcome, reason = found.outcome, found.refusal.reason
            else:
                picked, telling = found
                with telling:
                    replies = self.exchange.picked(picked)
                    # If a reply cannot be sent, the pick is withdrawn.
                    for reply in replies[:FIRST]:
                        await self._write(reply)
                    await self._call.drain()
                self.exchange.booked(picked)
                outcome = Outcome.PICKED
        finally:
            if self._span is not None:
                self._span.set({"warmpath.outcome": outcome.value})
                self._span.ends_with(CODES[outcome].name)
            self._desk.picked(outcome, time.perf_counter() - begun, reason)
        for reply in replies[FIRST:]:
            await self._write(reply)

    async def _found(self, want: WantPick) -> tuple[Picked, AbstractContextManager[None]] | NoPick:
        named = request_id_of(want.headers.items())
        asker = Asker(self._call.peer, self._call, named)
        try:
            return await self._desk.pick(want, asker)
        except Exception as error:
            failure = failure_of(error, self._desk.pick_seconds)
            if failure.outcome is Outcome.FAULT:
                log.exception("a pick failed")
            return failure

    def _unpicked(self, failure: NoPick) -> list[Reply]:
        if failure.is_ours and self._desk.may_let_through:
            return self.exchange.let_through()
        return self.exchange.refused(failure.refusal)
