"""The router's handle of one rendering process."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from typing import cast

import msgspec

from warmpath.prefixstore.chats.chat import ModelTemplate
from warmpath.prefixstore.chats.render_frame import (
    LENGTH_BYTES,
    REPLY_ROOM,
    Begin,
    Done,
    Load,
    frame,
    reply_decoder,
)
from warmpath.prefixstore.chats.renderer import RenderCrashedError, RenderTimeoutError
from warmpath.prefixstore.chats.template import RenderLimitError, TemplateError
from warmpath.prefixstore.isolated import isolated

COMMAND = isolated("warmpath.prefixstore.chats.render_process")

START_SECONDS = 60.0
"""Longest wait for each step of a process's start: a busy machine takes a while to start Python."""

ENDING_SECONDS = 1.0
"""Longest wait for the exit of a process that closed its socket."""


class _Replies(asyncio.Protocol):
    """Receives the replies of a process, one at a time, of at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self.has_ended = False
        self._most = most
        self._received = bytearray()
        self._reply: asyncio.Future[bytes] | None = None

    def expect(self) -> asyncio.Future[bytes]:
        """Return the next reply, to a request that is sent after this."""
        self._reply = asyncio.get_running_loop().create_future()
        if self.has_ended:
            self._fail(EOFError("its socket is closed"))
        return self._reply

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if len(received) < LENGTH_BYTES:
            return
        length = int.from_bytes(received[:LENGTH_BYTES], "little")
        if length > self._most:
            problem = f"it announced a reply of {length} bytes; at most {self._most} are allowed"
            self._fail(EOFError(problem))
        elif len(received) > LENGTH_BYTES + length:
            self._fail(EOFError("it sent more than a reply"))
        elif len(received) == LENGTH_BYTES + length:
            self._received = bytearray()
            if self._reply is None or self._reply.done():
                self._fail(EOFError("it sent a reply that was not asked for"))
            else:
                self._reply.set_result(bytes(received[LENGTH_BYTES:]))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or EOFError("its socket is closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def _fail(self, error: Exception) -> None:
        self.has_ended = True
        self._transport.abort()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)


class RenderWorker:
    """A process that renders one chat at a time; `start` makes one, `stop` ends it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        replies: _Replies,
        writer: asyncio.Transport,
    ) -> None:
        self.process = process
        self._replies = replies
        self._writer = writer
        self._loaded: dict[str, ModelTemplate] = {}

    @classmethod
    async def start(cls, limits: Begin) -> "RenderWorker":
        """Start a process. Raises the errors of `call`, and OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            loop = asyncio.get_running_loop()
            most = limits.max_output_bytes + REPLY_ROOM
            writer, replies = await loop.create_unix_connection(lambda: _Replies(most), sock=ours)
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
                writer.abort()
                raise
        worker = cls(process, replies, writer)
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
        return self.process.poll() is None and not self._replies.has_ended

    async def call(self, request: bytes, seconds: float) -> str:
        """Send a frame and return the text of the reply.

        Raises TemplateError for a refusal. After one of its subclasses, or a cancellation, the process
        must be stopped: RenderLimitError, RenderTimeoutError past `seconds` or the limit of CPU time,
        RenderCrashedError if the process has ended or its answer is not a frame.
        """
        try:
            reply = reply_decoder.decode(await self._exchange(request, seconds))
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

    async def _exchange(self, request: bytes, seconds: float) -> bytes:
        reply = self._replies.expect()
        timer = asyncio.get_running_loop().call_later(seconds, _end, reply, TimeoutError())
        self._writer.write(request)
        try:
            return await reply
        finally:
            timer.cancel()

    async def stop(self) -> None:
        """Kill the process and wait until it has ended."""
        self._writer.abort()
        self.process.kill()
        # In a thread: the kernel takes a while to free the memory of a large process.
        await asyncio.to_thread(self.process.wait)


def _end(reply: asyncio.Future[bytes], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
