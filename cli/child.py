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
from collections.abc import Sequence
from pathlib import Path
from typing import IO

START_SECONDS = 300.0
"""Longest wait for a process to start: the first router on a machine compiles its index, which takes a
minute or two, and three on a busy machine."""
STOP_SECONDS = 5.0

BIND = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""The program. A parent that has ended by then sends no signal any more: its child does not begin."""


def bound(words: Sequence[str]) -> list[str]:
    """Return the command line that runs another, with the path of a program, bound to this process.

    The thread that starts it must live as long as the process: its end counts as the parent's.
    """
    if sys.platform != "linux":
        return [*words]
    return [sys.executable, "-ISc", BIND, str(os.getpid()), *words]


class ChildError(Exception):
    """A child process did not start, or ended unexpectedly; the message names its log."""


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
