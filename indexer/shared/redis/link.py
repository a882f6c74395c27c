"""One connection to a Redis node, shared by all callers: pipelined, answered in order.

Each caller writes its commands at once. One of the waiting callers reads, also the replies to callers
before it. So one connection serves many callers at the same time. A caller that gave up leaves no reply
that another could take for its own: its replies are still read, and dropped, when they come.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from warmpath.indexer.shared.redis.command import Argument, Reply, UnreachableError

PATIENCE = 1.0
"""Seconds that a node may owe a reply whose caller gave up, before the connection counts as lost."""


class Wire(Protocol):
    """A connection's socket. Its failures are raised as UnreachableError."""

    @property
    def is_open(self) -> bool:
        """Whether this side has not closed it."""

    async def send(self, commands: Sequence[tuple[Argument, ...]]) -> None:
        """Write all commands before the first `await`; if cancelled midway, close the connection."""

    async def receive(self) -> Reply:
        """Return the next reply; a refusal is returned as a CommandRefusedError. Safe to cancel."""

    async def is_dirty(self) -> bool:
        """Return whether the other side closed it, or sent something that nobody asked for."""

    async def close(self, *, wait: bool = False) -> None:
        """Close it, and drop unsent bytes; with `wait`, wait a bounded time until it is closed."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """One caller's commands that wait for their replies."""

    count: int
    replies: list[Reply]
    sent_at: float
    woken: asyncio.Future[None] | None = None
    abandoned: bool = False

    def wake(self) -> bool:
        if self.abandoned or self.woken is None:
            return False
        if not self.woken.done():
            self.woken.set_result(None)
        return True


class Link:
    """One connection that all callers share. Belongs to one event loop; `on_lost` is called once."""

    def __init__(self, wire: Wire, on_lost: Callable[[], None]) -> None:
        self._wire = wire
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Ticket] = deque()
        self._reading = False
        self.lost = False
        self._why = "the connection was lost"
        self.scripts: set[str] = set()
        """Digests of the scripts that were sent over it."""

    async def is_usable(self) -> bool:
        """Return whether commands can be sent over it; close it where they cannot."""
        if self.lost:
            return False
        if self._wire.is_open and (self._waiting or not await self._wire.is_dirty()):
            return True
        await self.close()
        return False

    async def ask(self, commands: Sequence[tuple[Argument, ...]], replies: list[Reply]) -> None:
        """Send commands, and append the reply to each as it comes.

        Raises UnreachableError where the connection is lost; what has come by then is in `replies`.
        """
        ticket = _Ticket(len(commands), replies, self._loop.time())
        self._waiting.append(ticket)
        try:
            await self._wire.send(commands)
            while ticket.count and not self.lost:
                if self._reading:
                    ticket.woken = self._loop.create_future()
                    await ticket.woken
                else:
                    await self._read(ticket)
        except asyncio.CancelledError:
            await self._abandon(ticket)
            raise
        except BaseException as error:
            # The node is not reached; or a word has a type that cannot be sent: nothing was sent.
            was_lost = self.lost
            if isinstance(error, UnreachableError) and not was_lost:
                # The other callers wait in vain for the same reason.
                self._why = str(error)
            await self.close()
            if was_lost and isinstance(error, UnreachableError):
                # This side closed it, and the socket's own error would blame the server.
                raise UnreachableError(self._why) from error
            raise
        if ticket.count:
            raise UnreachableError(self._why)
        self._pass_on()

    async def close(self, *, wait: bool = False) -> None:
        """Close it. Callers that still wait get an UnreachableError."""
        if not self.lost:
            self.lost = True
            self._on_lost()
        for ticket in self._waiting:
            ticket.wake()
        await self._wire.close(wait=wait)

    async def _read(self, until: _Ticket) -> None:
        self._reading = True
        try:
            while until.count:
                reply = await self._wire.receive()
                ticket = self._waiting[0]
                ticket.count -= 1
                if not ticket.abandoned:
                    ticket.replies.append(reply)
                if not ticket.count:
                    self._waiting.popleft()
                    ticket.wake()
        finally:
            self._reading = False

    async def _abandon(self, ticket: _Ticket) -> None:
        ticket.abandoned = True
        oldest = next((waiting for waiting in self._waiting if waiting.abandoned), ticket)
        is_late = ticket.count and self._loop.time() - oldest.sent_at >= PATIENCE
        if is_late:
            self._why = f"no answer within {PATIENCE:g} s"
        if is_late or not self._wire.is_open:
            await self.close()
        self._pass_on()

    def _pass_on(self) -> None:
        if not self._reading:
            any(ticket.wake() for ticket in self._waiting)
