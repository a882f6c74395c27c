"""The router's handle of one rendering process."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

import msgspec

from warmpath.prefixstore.chats.chat import ModelTemplate
from warmpath.prefixstore.chats.jinja_template import RenderLimitError, TemplateError
from warmpath.prefixstore.chats.render_process import HEAD, Done, Load, Reply
from warmpath.prefixstore.workers import isolated

COMMAND = isolated("warmpath.prefixstore.chats.render_process")

LOAD_SECONDS = 60.0
"""Longest wait until a process has loaded a template: a busy machine takes a while to start Python. An
endless compilation is ended by the process's limit of CPU time: by the wall clock, a good template would
look broken on a busy machine."""

ENDING_SECONDS = 1.0
"""Longest wait for the exit of a process that closed its socket."""

REPLY_ROOM = 1 << 16
"""Bytes that a reply may have in addition to its text."""

_replies = msgspec.msgpack.Decoder(Reply)


class RenderTimeoutError(TemplateError):
    """A rendering took longer than its limit or the caller's timeout."""


class RenderCrashedError(TemplateError):
    """The process that rendered this chat has ended, or none could be started for it."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Limits of time, output, memory and waiting chats."""

    seconds: float
    """Longest time of one rendering, by the wall clock."""
    max_output_bytes: int
    """Largest rendered text, in bytes of UTF-8."""
    max_memory_bytes: int
    """Largest address space of one process."""
    max_waiting: int
    """Most chats that wait for a process."""
    max_waiting_bytes: int
    """Most bytes of waiting chats."""


class RenderWorker:
    """A process that renders one chat at a time; `start` makes one, `stop` ends it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        most_bytes: int,
    ) -> None:
        self.process = process
        self.writer = writer
        self.calls = 0
        """The number of requests so far."""
        self._reader = reader
        self._most_bytes = most_bytes
        self._loaded: dict[str, ModelTemplate] = {}

    @classmethod
    async def start(cls, limits: RenderLimits) -> "RenderWorker":
        """Start a process, which limits output, memory and CPU time by itself. Raises OSError."""
        own = map(str, (limits.max_output_bytes, limits.max_memory_bytes, limits.seconds))
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                # Not asyncio's subprocess: uvloop's forks this whole process with its index. `Popen`
                # uses vfork where the system has it.
                process = subprocess.Popen(  # noqa: ASYNC220, S603
                    [sys.executable, *COMMAND, *own],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    # Templates write the date in local time.
                    env={"TZ": os.environ["TZ"]} if "TZ" in os.environ else {},
                )
            except OSError:
                writer.transport.abort()
                raise
        return cls(process, reader, writer, limits.max_output_bytes + REPLY_ROOM)

    async def load(self, template_id: str, template: ModelTemplate) -> None:
        """Load a template into the process unless it is loaded. Raises the errors of `call`."""
        if self._loaded.get(template_id) is not template:
            await self.call(msgspec.msgpack.encode(Load(template_id, template)), LOAD_SECONDS)
            self._loaded[template_id] = template

    async def call(self, request: bytes, seconds: float) -> str:
        """Make a request, in MessagePack, and return the text of the reply.

        Raises TemplateError for a refusal. After one of its subclasses, or a cancellation, the process
        must be stopped: RenderLimitError, RenderTimeoutError past `seconds` or the limit of CPU time,
        RenderCrashedError if the process has ended or its answer is not a frame.
        """
        self.calls += 1
        try:
            async with asyncio.timeout(seconds):
                self.writer.writelines((HEAD.pack(len(request)), request))
                reply = _replies.decode(await self._reply())
        except TimeoutError as error:
            raise RenderTimeoutError(
                f"the chat template takes longer than {seconds:g} s"
            ) from error
        except (OSError, EOFError, msgspec.DecodeError, UnicodeDecodeError) as error:
            if await asyncio.to_thread(self._worked_too_long):
                raise RenderTimeoutError(
                    "the chat template takes more processor time than it may"
                ) from error
            problem = f"the process that rendered this ended: {error}"
            if self.calls == 1:
                problem = f"no process to render in: {problem}"
            raise RenderCrashedError(problem) from error
        if isinstance(reply, Done):
            return reply.text
        kind = RenderLimitError if reply.limit else TemplateError
        raise kind(reply.problem, reply.field)

    async def _reply(self) -> bytes:
        (length,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
        if length > self._most_bytes:
            raise EOFError(
                f"it announced a reply of {length} bytes; at most {self._most_bytes} are allowed"
            )
        return await self._reader.readexactly(length)

    def _worked_too_long(self) -> bool:
        """Return whether the kernel killed the process for its CPU time."""
        try:
            return self.process.wait(ENDING_SECONDS) == -signal.SIGXCPU
        except subprocess.TimeoutExpired:
            return False

    async def stop(self) -> None:
        """Kill the process and wait until it has ended."""
        self.writer.transport.abort()
        self.process.kill()
        # In a thread: the kernel takes a while to free the memory of a large process.
        await asyncio.to_thread(self.process.wait)
