"""One connection to a Redis node, shared by all who ask: pipelined, answered in order.

Commands are written as they come, and whoever waits first reads, for those before it as well. So one
connection serves many at once, and one that gave up waiting leaves nothing behind that another could
take for its own reply: the late reply is still counted off when it comes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from indexer.shared.redis.command import Argument, Reply, UnreachableError

PATIENCE = 1.0
"""Seconds a node may owe a reply that somebody gave up on, before the connection counts as lost."""


class Wire(Protocol):
    """A connection's socket. What goes wrong with it is an UnreachableError."""

    @property
    def is_open(self) -> bool:
        """Whether it was not closed from this side."""

    async def send(self, commands: Sequence[tuple[Argument, ...]]) -> None:
        """Write; all of it is on its way before this first waits. Closed where that is cut short."""

    async def receive(self) -> Reply:
        """Return the next reply. What Redis refused is a RefusedError, returned. Safe to cancel."""

    async def is_dirty(self) -> bool:
        """Return whether the other side closed it, or sent what nobody reads."""

    async def close(self, *, wait: bool = False) -> None:
        """Close it, with what it has not sent yet; `wait` until that is done, a bounded time."""


class _Ticket:
    """Commands that wait for their replies."""

    __slots__ = ("abandoned", "count", "replies", "sent_at", "woken")

    def __init__(self, count: int, replies: list[Reply], sent_at: float) -> None:
        self.count = count
        self.replies = replies
        self.sent_at = sent_at
        self.woken: asyncio.Future[None] | None = None
        self.abandoned = False

    def wake(self) -> bool:
        """Wake who waits; return whether somebody did, or was just woken."""
        if self.abandoned or self.woken is None:
            return False
        if not self.woken.done():
            self.woken.set_result(None)
        return True


class Link:
    """See the module. Belongs to one event loop."""

    def __init__(self, wire: Wire, on_lost: Callable[[], None]) -> None:
        self._wire = wire
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Ticket] = deque()
        self._reading = False
        self.lost = False
        self.scripts: set[str] = set()
        """Digests of the scripts that were sent over it."""

    async def is_usable(self) -> bool:
        """Return whether it can be asked; closes it where it cannot."""
        if self.lost:
            return False
        if self._wire.is_open and (self._waiting or not await self._wire.is_dirty()):
            return True
        await self.close()
        return False

    async def ask(self, commands: Sequence[tuple[Argument, ...]], replies: list[Reply]) -> None:
        """Send, and append the reply to each as it comes.

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
        except BaseException:
            # Unreachable; or a word of a type that Redis does not know, and nothing was sent.
            await self.close()
            raise
        if ticket.count:
            raise UnreachableError("the connection was lost")
        self._pass_on()

    async def close(self, *, wait: bool = False) -> None:
        """Close it. Who still waits gets an UnreachableError."""
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
        if is_late or not self._wire.is_open:
            await self.close()
        self._pass_on()

    def _pass_on(self) -> None:
        """Have another one read, if any waits."""
        if not self._reading:
            any(ticket.wake() for ticket in self._waiting)
