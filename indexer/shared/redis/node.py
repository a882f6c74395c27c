"""One node of Redis. It is connected on first use, and again where the connection was lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha1

from warmpath.indexer.shared.redis.command import (
    Argument,
    Call,
    Command,
    CommandRefusedError,
    Reply,
    Script,
    UnreachableError,
)
from warmpath.indexer.shared.redis.fault import NO_CONNECTION
from warmpath.indexer.shared.redis.link import Link, Wire

FIRST_PAUSE = 0.05
"""Seconds after a failed connection before the next is tried; doubled each time."""
LAST_PAUSE = 0.5

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
        """Return the error of a caller that got no answer within `seconds`."""
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
        """Return the reply to one command. Raises where it is refused, or not answered so soon."""
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
