"""Drives one exchange over one gRPC stream: reads events, writes replies, picks and reports."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import grpc.aio

from router.endpoint_picker.actions import Action, Picked, Reply, Report, WantPick
from router.endpoint_picker.exchange import Exchange
from router.endpoint_picker.messages import bytes_of, event_of
from router.endpoint_picker.outcomes import Failure, Outcome, failure_of
from router.queue.place import Asker

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class Desk(Protocol):
    """The part of the service that its streams share."""

    may_let_through: bool
    """Whether a request goes on without a pick if the pick failed through the router's fault."""
    pick_seconds: float
    body_seconds: float

    async def enter(self, stack: AsyncExitStack, want: WantPick, asker: Asker) -> Picked:
        """Wait for the router's turn and pick; the pick holds once the stack is closed."""

    async def report(self, report: Report) -> None:
        """Report a request's progress."""

    def hold(self, change: int) -> bool:
        """Change the count of held bytes by `change`; return whether it is within its limit."""

    def picked(self, outcome: Outcome, seconds: float) -> None:
        """Count a request that asked for a pick."""


class Stream:
    """One stream, in one task."""

    def __init__(self, exchange: Exchange, context: Context, desk: Desk) -> None:
        self.exchange = exchange
        self._context = context
        self._desk = desk
        self._held = 0
        """Bytes of this stream in the desk's count of held bytes."""
        self._body_due: float | None = None
        """Time of the loop after which the stream no longer waits for the request's body."""
        self._reading: asyncio.Task[Any] | None = None
        """Reads a message; it outlives a wait that was given up."""

    async def read(self) -> bytes | None:
        """Return the next message; None after the last. While the body is held, wait for a while only.

        Raises CancelledError if the stream has ended.
        """
        if self.exchange.holds and self._reading is None:
            self._reading = asyncio.ensure_future(self._context.read())
        try:
            if self._reading is None:
                message = await self._context.read()
            else:
                if self.exchange.holds:
                    await self._wait_for_body(self._reading)
                message = await self._reading
                self._reading = None
        except grpc.aio.InternalError as error:
            raise asyncio.CancelledError("the stream has ended") from error
        return None if message is grpc.aio.EOF else message

    async def _wait_for_body(self, reading: "asyncio.Task[Any]") -> None:
        now = asyncio.get_running_loop().time()
        if self._body_due is None:
            self._body_due = now + self._desk.body_seconds
        await asyncio.wait({reading}, timeout=max(0.0, self._body_due - now))
        if not reading.done():
            await self._act(self.exchange.hold_no_more())

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
        reports = self.exchange.closed()
        self._count_held()
        if self._reading is not None:
            self._reading.cancel()
        for report in reports:
            await self._desk.report(report)

    def _count_held(self) -> bool:
        change = self.exchange.held_bytes - self._held
        self._held += change
        return self._desk.hold(change) if change else True

    async def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, WantPick):
                await self._pick(action)
            elif isinstance(action, Report):
                await self._desk.report(action)
            else:
                await self._write(action)

    async def _write(self, reply: Reply) -> None:
        try:
            await self._context.write(bytes_of(reply))
        except grpc.aio.InternalError as error:
            raise asyncio.CancelledError("the stream has ended") from error

    async def _pick(self, want: WantPick) -> None:
        begun = time.perf_counter()
        outcome, replies = Outcome.GONE, list[Reply]()
        try:
            async with AsyncExitStack() as stack:
                found = await self._found(stack, want)
                if isinstance(found, Picked):
                    replies = self.exchange.picked(found)
                else:
                    replies = self._unpicked(found)
                # If a reply cannot be sent, the pick is withdrawn.
                if replies:
                    await self._write(replies.pop(0))
            if isinstance(found, Picked):
                self.exchange.booked(found)
                outcome = Outcome.PICKED
            else:
                outcome = found.outcome
        finally:
            self._desk.picked(outcome, time.perf_counter() - begun)
        for reply in replies:
            await self._write(reply)

    async def _found(self, stack: AsyncExitStack, want: WantPick) -> Picked | Failure:
        seconds = self._desk.pick_seconds
        asker = Asker(self._context.peer(), self._context)
        try:
            return await self._desk.enter(stack, want, asker)
        except Exception as error:
            failure = failure_of(error, seconds)
            if failure.outcome is Outcome.FAULT:
                log.exception("a pick failed")
            return failure

    def _unpicked(self, failure: Failure) -> list[Reply]:
        if failure.is_ours and self._desk.may_let_through:
            return self.exchange.let_through()
        return self.exchange.refused(failure.refusal)
