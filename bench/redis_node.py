"""One server of a Redis Cluster on loopback, as a child process."""

import asyncio
import shlex
from pathlib import Path

from bench.cluster import ClusterError

STOP_SECONDS = 5.0


class RedisNode:
    """It keeps nothing on disk but where the others are, and its log, both in a folder."""

    def __init__(self, program: Path, port: int, folder: Path) -> None:
        self.name = f"redis-{port}"
        self._log = folder / f"{self.name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._words = (
            str(program),
            *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", "--logfile", self._log.name),
            *("--cluster-enabled", "yes", "--cluster-config-file", f"{self.name}.nodes"),
        )

    @property
    def command(self) -> str:
        """How it is started, for a shell."""
        return shlex.join(self._words)

    async def start(self) -> None:
        """Start it; it may not answer yet."""
        self._process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            # Ctrl-C is ours to pass on, in order.
            start_new_session=True,
        )

    def check(self) -> None:
        """Raise ClusterError where it has ended."""
        if self._process is not None and self._process.returncode is not None:
            code = self._process.returncode
            raise ClusterError(f"{self.name} ended with {code}; its log: {self._log}")

    def end(self) -> None:
        """Ask it to end."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def stop(self) -> None:
        """Wait till it has ended as it was asked to, and make it where it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
