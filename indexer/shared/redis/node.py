"""One node of Redis. It is connected on first use, and again where the connection was lost."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from typing import Protocol

from warmpath.indexer.shared.redis.command import (
    NO_CONNECTION,
    Argument,
    Call,
    Command,
    CommandRefusedError,
    Reply,
    Script,
    UnreachableError,
)

FIRST_PAUSE = 0.05
"""Seconds after a failed connection before the next is tried; doubled each time."""
LAST_PAUSE = 0.5
PATIENCE = 1.0
"""Seconds that a node may owe a reply whose caller gave up, before the connection counts as lost."""


class Wire(Protocol):
    """A connection's socket. Its failures are raised as UnreachableError."""

    @property
    def is_open(self) -> bool:
        """Whether this side has not closed the connection."""

    async def send(self, commands: Sequence[tuple[Argument, ...]]) -> None:
        """Write all commands before the first `await`; if cancelled midway, close the connection."""

    async def receive(self) -> Reply:
        """Return the next reply; a refusal is returned as a CommandRefusedError. Safe to cancel."""

    async def is_dirty(self) -> bool:
        """Return whether the other side closed the connection, or sent what nobody asked for."""

    async def close(self, *, wait: bool = False) -> None:
        """Close the connection, drop unsent bytes; with `wait`, wait a bounded time for its end."""


Dial = Callable[[], Awaitable[Wire]]
"""Opens a connection that is ready to be used. Raises CommandRefusedError or UnreachableError."""


class NotSentError(UnreachableError):
    """No connection to the node could be made, so no command was carried out."""


@cache
def digest(script: Script) -> str:
    """Return the name under which a server knows a script."""
    return sha1(script.source.encode(), usedforsecurity=False).hexdigest()


def again(error: Exception) -> Exception:
    """Return an error that was raised before as a new one, without its traceback."""
    return type(error)(*error.args)


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
    """One connection that all callers share: pipelined, answered in order. `on_lost` is called once.

    Each caller writes its commands at once. One of the waiting callers reads, also the replies to those
    before it. So one connection serves many callers at the same time. A caller that gave up leaves no
    reply that another could take for its own: its replies are still read, and dropped, when they come.
    """

    def __init__(self, wire: Wire, on_lost: Callable[[], None]) -> None:
        self._wire = wire
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Ticket] = deque()
        self._reading = False
        self.lost = False
        self._why = "the connection was lost"
        self.scripts: set[str] = set()
        """Digests of the scripts that were sent over the connection."""

    async def is_usable(self) -> bool:
        """Return whether commands can be sent over the link; close it where they cannot."""
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
        """Close the connection. Callers that still wait get an UnreachableError."""
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


class Node:
    """One node, with one connection at a time. `disrupted` is called when one is made or lost."""

    def __init__(self, name: str, dial: Dial, disrupted: Callable[[], None]) -> None:
        self.name = name
        self._dial = dial
        self._disrupted = disrupted
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._dialling: asyncio.Task[Link | Exception] | None = None
        self._pause = FIRST_PAUSE
        self._not_before = 0.0
        self.failure: Exception | None = None
        """Why the last attempt to connect failed; None where it did not."""

    @property
    def is_connected(self) -> bool:
        return self._link is not None and not self._link.lost

    @property
    def is_connecting(self) -> bool:
        return self._dialling is not None

    def late(self, seconds: float) -> Exception:
        """Return the error for a caller that got no answer within `seconds`; does not raise it."""
        if self.failure is not None:
            return again(self.failure)
        lacks = NO_CONNECTION if self.is_connecting else "no answer within"
        return NotSentError(f"{self.name}: {lacks} {seconds:g} s")

    async def ask(
        self, asked: Sequence[Command | Call], replies: list[Reply], *, asking: bool = False
    ) -> None:
        """Append the replies as they come; with `asking`, ASKING goes before each command.

        Raises CommandRefusedError or NotSentError where no connection can be made, UnreachableError
        where the connection is lost before the last reply.
        """
        link = await self._connected()
        commands: list[tuple[Argument, ...]] = []
        loads: list[int] = []
        """The positions of the commands that load scripts."""
        own: list[int] = []
        """The positions of the caller's own commands."""
        for one in asked:
            if isinstance(one, Call):
                name = digest(one.script)
                if name not in link.scripts:
                    link.scripts.add(name)
                    loads.append(len(commands))
                    commands.append(("SCRIPT", "LOAD", one.script.source))
                words = "EVALSHA", name, len(one.keys), *one.keys, *one.arguments
            else:
                words = one.words
            if asking:
                commands.append(("ASKING",))
            own.append(len(commands))
            commands.append(words)
        if len(commands) == len(asked):
            await link.ask(commands, replies)
            return
        got: list[Reply] = []
        try:
            await link.ask(commands, got)
        finally:
            loaded = [got[number] for number in loads if number < len(got)]
            refusal = next((one for one in loaded if isinstance(one, CommandRefusedError)), None)
            # The refusal to load a script is more helpful than the error about a missing script.
            replies += [
                refusal if refusal and str(got[number]).startswith("NOSCRIPT") else got[number]
                for number in own
                if number < len(got)
            ]

    async def answer(self, words: tuple[Argument, ...], seconds: float, about: str = "") -> Reply:
        """Return the reply to a command. Raises its refusal, after `about`, or the error of `late`."""
        replies: list[Reply] = []
        try:
            async with asyncio.timeout(seconds):
                await self.ask([Command(words)], replies)
        except TimeoutError:
            raise self.late(seconds) from None
        [reply] = replies
        if isinstance(reply, CommandRefusedError):
            raise CommandRefusedError(f"{self.name}: {about}{reply}")
        return reply

    def forget_script(self, script: Script) -> None:
        """Send a script again before its next call: the node does not have it any more."""
        if self._link is not None:
            self._link.scripts.discard(digest(script))

    async def hang_up(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        if self._link is not None:
            await self._link.close(wait=True)

    async def _connected(self) -> Link:
        if self._link is not None and await self._link.is_usable():
            return self._link
        if self._dialling is None:
            if self.failure is not None and self._loop.time() < self._not_before:
                raise again(self.failure)
            self._dialling = self._loop.create_task(self._connect())
        dialling = self._dialling
        # A caller that gives up must not end the attempt, since others may wait for it too.
        await asyncio.wait([dialling])
        if dialling.cancelled():
            # `close` cancelled it. The caller was not cancelled itself, so it gets an error.
            raise NotSentError(f"{self.name}: the client is closed")
        outcome = dialling.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _connect(self) -> Link | Exception:
        try:
            wire = await self._dial()
        except CommandRefusedError as error:
            return self._failed(CommandRefusedError(f"{self.name}: {error}"))
        except UnreachableError as error:
            return self._failed(NotSentError(f"{self.name}: {error}"))
        else:
            self._pause = FIRST_PAUSE
            self.failure = None
            self._link = Link(wire, self._disrupted)
            self._disrupted()
            return self._link
        finally:
            self._dialling = None

    def _failed(self, error: Exception) -> Exception:
        self.failure = error
        self._not_before = self._loop.time() + self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE)
        return error
