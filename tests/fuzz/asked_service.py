"""A router's service that is called without sockets: it takes bytes, and gives bytes or a status."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import grpc

from warmpath.h2grpc.metadata import trailers_of
from warmpath.h2grpc.method import RefusedError
from warmpath.router.assemble import calls
from warmpath.router.assemble.running import running
from warmpath.router.calls.service import SERVICE, RouterService
from warmpath.router.config.read import parse

CONFIG = """
[server]
listen = "127.0.0.1:0"
metrics-listen = ""
[index]
max-bytes = 16777216
[probe]
interval-seconds = 0
[limits]
max-prompt-tokens = 1000
[[models]]
name = "m"
[[pods]]
id = "a"
model = "m"
address = "127.0.0.1:1"
[[pods]]
id = "b"
model = "m"
address = "127.0.0.1:2"
role = "decode"
"""
SECONDS = 5.0


class Call:
    """A call with one message."""

    peer = "a caller"
    metadata = ()
    seconds_left = SECONDS

    def __init__(self, message: bytes) -> None:
        self._messages = [message]
        self.next_bytes = len(message)

    async def read(self) -> bytes | None:
        """Return the message; None after it."""
        return self._messages.pop() if self._messages else None

    def put(self, message: bytes) -> None:
        """Take an answer."""

    async def write(self, message: bytes) -> None:
        """Take an answer."""

    def if_gone(self, call: Callable[[], None]) -> None:
        """Do nothing: the client reads each answer."""


class AskedService:
    """A router that runs until the process ends; its service is called directly."""

    def __init__(self, runner: asyncio.Runner) -> None:
        made: list[RouterService] = []

        class Kept(RouterService):
            def __init__(self, *args: object, **more: object) -> None:
                super().__init__(*args, **more)  # type: ignore[arg-type]
                made.append(self)

        self._runner = runner
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        with patch.object(calls, "RouterService", Kept):
            self._router = running(parse(CONFIG, "fuzz"), folder)
            runner.run(self._router.__aenter__())
        [self._service] = made
        self.methods = [one for one in SERVICE.methods_by_name if one != "ScoreStream"]

    def ask(self, name: str, raw: bytes) -> None:
        """Call a method with a message's bytes. Raises AssertionError for a fault of the router."""
        method = self._service.methods()[f"/{SERVICE.full_name}/{name}"]
        try:
            self._runner.run(method.run(Call(raw)))
        except RefusedError as error:
            refusal = error.refusal
            # It is small enough to be sent.
            assert refusal.code is not grpc.StatusCode.INTERNAL
            trailers = trailers_of(refusal.code, refusal.text, refusal.metadata)
            assert sum(32 + len(key) + len(value) for key, value in trailers) < 8192
