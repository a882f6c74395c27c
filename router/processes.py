"""Runs several router processes behind one port, with one index.

The kernel distributes connections among them (SO_REUSEPORT). The first follows the pods' events, and all
read the index in one memory (`indexer.compiled.memory`), which this process makes and keeps. One that
ends fails only its own calls, and is started again; the first goes on from what its predecessor left
there (`indexer.processes.heritage`). They see each other's bookings, and hand each other's reports on,
over a board in this process (`router.peers.siblings`).
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from warmpath.process.address import HostPort
from warmpath.process.command_line import in_words
from warmpath.process.tasks import cancel, watched
from warmpath.router.config.schema import Config
from warmpath.router.peers.siblings import Board, answer

log = logging.getLogger(__name__)

T = TypeVar("T")

RESTART_SECONDS = 1.0
"""Pause before a process that ended is started again."""
GRACE_SECONDS = 10.0
"""Longest time that a process may take to end after its delay and its drain."""


def share_of(config: Config, number: int | None) -> Config:
    """Return the configuration of one of several processes: its own metrics port.

    A file that is read again may have fewer processes than there are. `number` None: the only process.
    """
    if number is None:
        return config
    server = config.server
    host, _, port = server.metrics_listen.rpartition(":")
    if server.metrics_listen and int(port):
        server = replace(server, metrics_listen=f"{host}:{int(port) + number}")
    return replace(config, server=server)


def check_free(address: str) -> None:
    """Raise OSError if another process listens on `address`, which sharing the port would hide."""
    host, port = HostPort.of(address)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, where = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            raise OSError(f"server.listen: cannot bind {address}: {in_words(error)}") from error


class Processes:
    """Keeps `count` processes running until `end` is called.

    `command` returns the arguments of a process, by its number and the descriptor of its socket, over
    which this process answers for the board of bookings. Each has the descriptors `inherited`, too.
    """

    def __init__(
        self,
        count: int,
        command: Callable[[int, int], Sequence[str]],
        *inherited: int,
        drain_seconds: float,
    ) -> None:
        self._count = count
        self._command = command
        self._inherited = inherited
        self._stop_seconds = drain_seconds + GRACE_SECONDS
        self._ended = asyncio.Event()
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._serving: set[int] = set()
        """Processes that handle signals: SIGHUP would kill one that has only begun."""
        self._to_reload: set[int] = set()
        """Processes that began before their configuration was to be read again."""
        self._board = Board(time.monotonic)
        self._answering: dict[int, asyncio.Task[None]] = {}
        """What answers each process for the board."""

    def end(self) -> None:
        self._ended.set()

    def reload(self) -> None:
        """Let each process read its configuration again, as soon as it serves."""
        self._to_reload.update(self._running)
        for number in self._serving:
            self._reload(number)

    def _reload(self, number: int) -> None:
        if number in self._to_reload:
            self._to_reload.discard(number)
            with contextlib.suppress(ProcessLookupError):
                self._running[number].send_signal(signal.SIGHUP)

    async def run(self, ready: Callable[[], None]) -> int:
        """Run until `end` is called; call `ready` once, when all processes serve.

        Return 0, or the exit status of a process that ended before all of them served, or that failed
        while it ended.
        """
        try:
            for status in await asyncio.gather(*map(self._start, range(self._count))):
                if status is not None:
                    return status
            ready()
            await asyncio.gather(*map(self._keep, range(self._count)))
        finally:
            statuses = await asyncio.gather(*map(self._stop, list(self._running)))
            await cancel(self._answering.values())
        return next(filter(None, statuses), 0)

    async def _start(self, number: int) -> int | None:
        here, there = socket.socketpair()
        self._answering[number] = watched(
            answer(self._board, here), f"bookings of process {number}"
        )
        with there:
            process = self._running[number] = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command(number, there.fileno()),
                pass_fds=(there.fileno(), *self._inherited),
                # A process ends when its input ends, so none remains if this process is killed.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                # Ctrl-C reaches only this process, which ends the others.
                start_new_session=True,
            )
        self._serving.discard(number)
        self._to_reload.discard(number)
        assert process.stdout is not None
        said = await self._before_end(process.stdout.readline())
        if said == b"":
            return await process.wait()
        if said is not None:
            self._serving.add(number)
            self._reload(number)
        return None

    async def _keep(self, number: int) -> None:
        while (status := await self._before_end(self._running[number].wait())) is not None:
            log.error("process %d %s; it is started again", number, _ended(status))
            if await self._before_end(asyncio.sleep(RESTART_SECONDS, result=True)):
                await self._start(number)

    async def _before_end(self, awaited: Coroutine[Any, Any, T]) -> T | None:
        """Return what is awaited; None if `end` is called before that."""
        wanted, ended = asyncio.ensure_future(awaited), asyncio.ensure_future(self._ended.wait())
        await asyncio.wait((wanted, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not self._ended.is_set():
            return wanted.result()
        wanted.cancel()
        return None

    async def _stop(self, number: int) -> int:
        process = self._running[number]
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            return await asyncio.wait_for(process.wait(), self._stop_seconds)
        except TimeoutError:
            process.kill()
            return await process.wait()


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by the signal {-status} ({signal.strsignal(-status)})"
