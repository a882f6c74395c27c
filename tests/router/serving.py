"""`warmpath serve` as a process."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Serving:
    """A router's process that is ready, with a file that the test rewrites."""

    def __init__(self, file: Path, process: Process, line: str) -> None:
        self.file = file
        self.process = process
        self.line = line
        """What it printed."""
        self.address = line.removeprefix("warmpath serves gRPC on ").split(",")[0].strip()
        self.lines: list[str] = []

    async def said(self, pattern: str) -> str:
        """Return the next line of the log that has a pattern; the test's own timeout bounds it."""
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            self.lines.append(raw.decode())
            if re.search(pattern, self.lines[-1]):
                return self.lines[-1]
        raise AssertionError(self.lines)

    async def reload(self, text: str) -> None:
        self.file.write_text(text)
        self.process.send_signal(signal.SIGHUP)


async def started(file: Path, text: str, **environment: str) -> Process:
    await asyncio.to_thread(file.write_text, text)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "warmpath.cli", "serve", "--config", str(file),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environment,
    )  # fmt: skip


@asynccontextmanager
async def serving(file: Path, text: str) -> AsyncIterator[Serving]:
    process = await started(file, text)
    try:
        assert process.stdout is not None
        yield Serving(file, process, (await process.stdout.readline()).decode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
