"""A child process, bound to its parent: it gets SIGTERM when the parent ends, even by SIGKILL.

Only Linux has that bond; elsewhere the children of a killed parent go on. A small program asks the
kernel for the signal and becomes the child, whose id it keeps. Python's `preexec_fn` could ask, too,
but may hang where the parent has threads.
"""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from warmpath.process.command_line import FINE, FOUND, in_words

START_SECONDS = 900.0
"""Longest wait for a process to start: a first start of the router compiles its index, which takes a
minute, and ten on a very busy machine."""
STOP_SECONDS = 5.0
AGAIN_SECONDS = 10.0
"""Time after a process' end within which the end of the one that took its place is a lasting fault."""
OURS = Path("standard error")
"""The `log` of a `Process` that writes to our own standard error."""

BIND = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""The small program. If the parent has ended by then, no signal will come: the program ends, too."""


def bound(words: Sequence[str]) -> list[str]:
    """Return the command line that runs `words`, the first a program's path, bound to this process.

    The thread that starts it must live as long as this process: its end counts as the parent's.
    """
    if sys.platform != "linux":
        return [*words]
    return [sys.executable, "-ISc", BIND, str(os.getpid()), *words]


class ChildError(Exception):
    """A child process did not start, or ended unexpectedly; the message names its log."""


def again(ended: ChildError, before: float, say: Callable[[str], None]) -> float:
    """Say that a process that has `ended` is started again; return the time now, in monotonic seconds.

    Raises the error itself if the process was started again within AGAIN_SECONDS, at the time `before`.
    """
    now = time.monotonic()
    if now - before < AGAIN_SECONDS:
        raise ended
    say(f"{ended}: it is started again")
    return now


def until_ended(command: str, begin: Callable[[], Awaitable[None]]) -> int:
    """Run a command that has children until its end, Ctrl-C or SIGTERM; return its exit status."""

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await begin()

    try:
        asyncio.run(run())
    except (ChildError, OSError) as error:
        print(f"warmpath {command}: {in_words(error)}", file=sys.stderr)
        return FOUND
    except (asyncio.CancelledError, KeyboardInterrupt):
        pass
    return FINE


class Child:
    """One child process with its own log. It ends when this process does."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.command = ""
        """The command line of its last start, for a shell."""
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def launch(
        self, *words: str, stdout: int = subprocess.DEVNULL, stderr: IO[bytes] | None = None
    ) -> asyncio.subprocess.Process:
        """Start a program, given by its path, with its arguments."""
        self.command = shlex.join(words)
        self._process = await asyncio.create_subprocess_exec(
            *bound(words),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            # Ctrl-C reaches only the parent, which ends its children in order.
            start_new_session=True,
        )
        return self._process

    def check(self) -> None:
        """Raise ChildError if the process has ended."""
        if self._process is not None and self._process.returncode is not None:
            code = self._process.returncode
            raise ChildError(f"{self.name} ended with {code}; its log: {self._log}")

    async def stop(self, within: float = STOP_SECONDS) -> int | None:
        """Ask the process to end, and kill it after `within` seconds.

        Returns its exit status, None if it was not started or was stopped before.
        """
        process, self._process = self._process, None
        if process is None:
            return None
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        return process.returncode


class Process(Child):
    """A Python module as a child process; its standard error goes to its log, or to OURS."""

    async def start(self, *args: str) -> str:
        """Start `python -m ARGS`; return the first line it prints. Raises ChildError if none comes."""
        words = (sys.executable, "-m", *args)
        with nullcontext() if self._log == OURS else self._log.open("ab") as log:
            process = await self.launch(*words, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError as error:
            raise ChildError(f"{self.name} did not get ready; its log: {self._log}") from error
        if not line:
            text = "" if self._log == OURS else self._log.read_text("utf-8", errors="replace")
            why = f": {last}" if (last := text.rstrip().rpartition("\n")[2]) else ""
            raise ChildError(f"{self.name} ended while starting{why}; its log: {self._log}")
        return line.decode()

    def kill(self) -> None:
        """Kill the process, which then ends as in a crash."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def ended(self) -> None:
        """Wait for the end of the process. Raises ChildError unless `stop` has ended it."""
        if self._process is not None:
            await self._process.wait()
        self.check()


def addresses_of(line: str) -> tuple[str, str]:
    """Return the addresses of a router's gRPC and of its HTTP, from the first line that it prints.

    The line is `warmpath serves gRPC on HOST:PORT, HTTP on HOST:PORT, …`.
    """
    grpc, http = (part.rpartition(" on ")[2].strip() for part in line.split(",")[:2])
    return grpc, http
