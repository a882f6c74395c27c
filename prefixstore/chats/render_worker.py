"""The router's handle of one rendering process."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import msgspec

from prefixstore.chats.chat import ModelTemplate
from prefixstore.chats.render_frame import (
    LENGTH_BYTES,
    REPLY_ROOM,
    Begin,
    Done,
    Load,
    frame,
    reply_decoder,
)
from prefixstore.chats.renderer import RenderCrashedError, RenderTimeoutError
from prefixstore.chats.template import RenderLimitError, TemplateError
from prefixstore.isolated import isolated

COMMAND = isolated("prefixstore.chats.render_process")

START_SECONDS = 60.0
"""Longest wait for each step of a process's start: a busy machine takes a while to start Python."""

ENDING_SECONDS = 1.0
"""Longest wait for the exit of a process that closed its socket."""


class RenderWorker:
    """A process that renders one chat at a time; `start` makes one, `stop` ends it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        most: int,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._most = most + REPLY_ROOM
        self._loaded: dict[str, ModelTemplate] = {}

    @classmethod
    async def start(cls, limits: Begin) -> "RenderWorker":
        """Start a process. Raises the errors of `call`, and OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                # Not asyncio's subprocess: uvloop's forks this whole process with its index. `Popen`
                # uses vfork where the system has it.
                process = subprocess.Popen(  # noqa: ASYNC220, S603
                    [sys.executable, *COMMAND],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    # Templates write the date in local time.
                    env={"TZ": os.environ["TZ"]} if "TZ" in os.environ else {},
                )
            except OSError:
                writer.transport.abort()
                raise
        worker = cls(process, reader, writer, limits.max_output_bytes)
        try:
            await worker.call(frame(limits), START_SECONDS)
        except BaseException:
            await worker.stop()
            raise
        return worker

    async def load(self, template_id: str, template: ModelTemplate, seconds: float) -> None:
        """Load a template into the process unless it is loaded. Raises the errors of `call`."""
        if self._loaded.get(template_id) is not template:
            await self.call(frame(Load(template_id, template)), seconds)
            self._loaded[template_id] = template

    @property
    def alive(self) -> bool:
        """Whether the process runs and its socket is open."""
        return self.process.poll() is None and not self._reader.at_eof()

    async def call(self, request: bytes, seconds: float) -> str:
        """Send a frame and return the text of the reply.

        Raises TemplateError for a refusal. After one of its subclasses, or a cancellation, the process
        must be stopped: RenderLimitError, RenderTimeoutError past `seconds` or the limit of CPU time,
        RenderCrashedError if the process has ended or its answer is not a frame.
        """
        try:
            async with asyncio.timeout(seconds):
                body = await self._exchange(request)
            reply = reply_decoder.decode(body)
        except TimeoutError as error:
            raise RenderTimeoutError(
                f"the chat template takes longer than {seconds:g} s"
            ) from error
        except (OSError, EOFError, msgspec.DecodeError, UnicodeDecodeError) as error:
            if await asyncio.to_thread(self._worked_too_long):
                raise RenderTimeoutError(
                    "the chat template takes more processor time than it may"
                ) from error
            raise RenderCrashedError(f"the process that rendered this ended: {error}") from error
        if isinstance(reply, Done):
            return reply.text
        kind = RenderLimitError if reply.limit else TemplateError
        raise kind(reply.problem, reply.field)

    def _worked_too_long(self) -> bool:
        """Return whether the kernel killed the process for its CPU time."""
        try:
            return self.process.wait(ENDING_SECONDS) == -signal.SIGXCPU
        except subprocess.TimeoutExpired:
            return False

    async def _exchange(self, request: bytes) -> bytes:
        self._writer.write(request)
        await self._writer.drain()
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "little")
        if length > self._most:
            raise EOFError(
                f"it announced a reply of {length} bytes; at most {self._most} are allowed"
            )
        return await self._reader.readexactly(length)

    async def stop(self) -> None:
        """Kill the process and wait until it has ended."""
        self._writer.transport.abort()
        self.process.kill()
        # In a thread: the kernel takes a while to free the memory of a large process.
        await asyncio.to_thread(self.process.wait)
