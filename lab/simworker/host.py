"""A worker's sockets and tasks (HTTP, event publishers, engines), opened and closed together."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from warmpath.lab.simworker.api.app import application
from warmpath.lab.simworker.events.publisher import EndpointError, Publisher, unbound
from warmpath.lab.simworker.options import Settings
from warmpath.lab.simworker.server.task_set import TaskSet
from warmpath.lab.simworker.server.worker import Worker

WRITE_SECONDS = 0.5
"""The longest wait for complete answers to be written when the worker closes."""


class Host:
    """Owns one worker. `exit_process` ends the process at once; None if other workers live in it too."""

    def __init__(
        self,
        build: Callable[["Host"], tuple[Worker, Sequence[Publisher]]],
        *,
        listen: tuple[str, int],
        settings: Settings,
        fetch_events: Callable[[Any], list[dict[str, Any]]] | None,
        exit_process: Callable[[], Any] | None,
    ) -> None:
        self.tasks = TaskSet()
        self._gone = asyncio.Event()
        self._listen = listen
        self._settings = settings
        self._fetch_events = fetch_events
        self._exit_process = exit_process
        self._timers: list[asyncio.TimerHandle] = []
        self._runner: web.AppRunner | None = None
        self.worker, self._publishers = build(self)

    async def start(self) -> None:
        """Begin to serve. Raises EndpointError if the address cannot be bound."""
        app = application(
            self.worker, allow_faults=self._settings.faults.allowed,
            fetch_events=self._fetch_events, api_key=self._settings.api_key,
            without=self._settings.without,
        )  # fmt: skip
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=WRITE_SECONDS
        )
        await self._runner.setup()
        host, port = self._listen
        try:
            await web.TCPSite(self._runner, host, port).start()
        except socket.gaierror as error:
            raise EndpointError(f"{host}:{port}: there is no such host") from error
        except OSError as error:
            raise EndpointError(f"{host}:{port}: {unbound(error.errno)}") from error
        for number, publisher in enumerate(self._publishers):
            self.tasks.start(publisher.serve_replay(), f"replay of rank {number}")
        loop, faults = asyncio.get_running_loop(), self._settings.faults
        for after, act in (
            (faults.crash_after, self.crash),
            (faults.restart_after, self.worker.restart),
            (faults.hang_after, lambda: self.worker.hang(True)),
        ):
            if after is not None:
                self._timers.append(loop.call_later(after, act))

    @property
    def ready(self) -> dict[str, Any]:
        """Return the worker's addresses: HTTP, rank 0's sockets, and all ranks' if there are several.

        An engine that publishes no events has HTTP only.
        """
        assert self._runner is not None
        host = self._listen[0]
        address = f"[{host}]" if ":" in host else host
        described: dict[str, Any] = {"address": f"{address}:{self._runner.addresses[0][1]}"}
        if not self.worker.identity.streams:
            return described
        first = self._publishers[0]
        described |= {"events": first.endpoint, "replay": first.replay_endpoint}
        if len(self._publishers) > 1:
            described["ranks"] = [
                {"events": publisher.endpoint, "replay": publisher.replay_endpoint}
                for publisher in self._publishers
            ]
        return described

    def reset_connections(self, spare: object = None) -> None:
        """Reset every HTTP connection except `spare`; requests on them get no answer."""
        server = self._runner.server if self._runner is not None else None
        for connection in server.connections if server is not None else ():
            if connection.transport is not None and connection.transport is not spare:
                connection.transport.abort()

    def crash(self) -> None:
        """End the process at once, or only this worker if the process has others."""
        if self._exit_process is not None:
            self._exit_process()
        self.reset_connections()
        self._gone.set()

    async def live(self) -> None:
        """Wait until the worker has crashed, then close its parts. Raises a failed task's exception."""
        gone = asyncio.create_task(self._gone.wait())
        try:
            await asyncio.wait((gone, self.tasks.failed), return_when=asyncio.FIRST_COMPLETED)
            if self.tasks.failed.done():
                self.tasks.failed.result()
            await self.close()
        finally:
            gone.cancel()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests; wait at most `seconds` for those under way."""
        self.worker.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self.worker.drained()
        except TimeoutError:
            return

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await self.tasks.close()
        for publisher in self._publishers:
            publisher.close()
