"""A router's service that is called without sockets: it takes bytes, and gives bytes or a status."""

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import grpc
import grpc.aio

from warmpath.h2grpc.metadata import trailers_of
from warmpath.proto.errors import Metadata
from warmpath.router.assemble import running as assemble
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


class RefusedError(Exception):
    """The call was ended with a status."""


class Call:
    """The context of a call that a handler gets."""

    def __init__(self, message: bytes) -> None:
        self._messages: list[object] = [message]

    def invocation_metadata(self) -> tuple[()]:
        """Return no metadata."""
        return ()

    def peer(self) -> str:
        """Return the caller's address."""
        return "a caller"

    async def read(self) -> object:
        """Return the message; gRPC's end after it."""
        return self._messages.pop() if self._messages else grpc.aio.EOF

    def time_remaining(self) -> float:
        """Return the seconds until the caller's deadline."""
        return SECONDS

    async def write(self, message: bytes) -> None:
        """Take an answer."""

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Metadata) -> None:
        """End the call with a status, which must not be INTERNAL and has to be small enough to be sent."""
        assert code is not grpc.StatusCode.INTERNAL
        trailers = trailers_of(code, details, metadata)
        assert sum(32 + len(key) + len(value) for key, value in trailers) < 8192
        raise RefusedError(code)


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
        with patch.object(assemble, "RouterService", Kept):
            self._router = assemble.running(parse(CONFIG, "fuzz"), folder)
            runner.run(self._router.__aenter__())
        [self._service] = made
        self.methods = [one for one in SERVICE.methods_by_name if one != "ScoreStream"]

    def ask(self, method: str, raw: bytes) -> None:
        """Call a method with a message's bytes. Raises AssertionError for a fault of the router."""
        found = self._service.handlers().service(Details(f"/{SERVICE.full_name}/{method}"))
        assert found
        call = found.stream_stream or found.stream_unary
        try:
            self._runner.run(call(None, Call(raw)))
        except RefusedError:
            return


class Details:
    """The call's method, as gRPC names it to handlers."""

    invocation_metadata = ()

    def __init__(self, method: str) -> None:
        self.method = method
