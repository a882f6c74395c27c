"""Publishers as processes, which a test can stop and kill, and engines' sockets for them."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import zmq.asyncio

from tests.engine_sockets import EngineSockets
from tests.faults.pod import MODEL
from tests.faults.rig import Rig
from tests.soak.watched_process import WatchedProcess

END_SECONDS = 10.0
PERIOD = 0.1
"""Seconds for which a share of a core is given, as a container's limit does."""
LOOK_PAUSE = 0.002
"""Seconds between two looks at how much processor time was used."""


class Outside:
    """All processes around a rig for whose pods nobody else writes. They end when the rig is closed."""

    def __init__(self, made: Rig, url: str) -> None:
        """`url` is that of the Redis to which processes write."""
        self._made = made
        self._url = url
        self._stack = made.outside
        self._folder = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-"))
        )
        self._engines: dict[str, EngineSockets] = {}

    async def listen(self) -> None:
        """Give each pod's engine its sockets."""
        context = zmq.asyncio.Context()
        self._stack.callback(context.term)
        for pod in self._made.pods.values():
            sockets = self._engines[pod.name] = EngineSockets(context)
            await sockets.start()
            self._stack.callback(sockets.close)
            pod.follow(lambda message, _, of=sockets: of.publish(*message))

    async def publish(self) -> list[WatchedProcess]:
        """Start a publisher for each pod."""
        return [
            await self._start(
                f"publisher-{pod}", "warmpath.publisher.main", f"--pod={pod}", f"--model={MODEL}",
                f"--events={engine.events}", f"--replay={engine.replay}", "--listen=127.0.0.1:0",
                "--metrics-listen=", f"--redis={self._url}",
                f"--redis-prefix={self._made.names.prefix}",
                f"--redis-lease-seconds={self._made.lease}",
            )
            for pod, engine in self._engines.items()
        ]  # fmt: skip

    async def _start(self, name: str, *words: str) -> WatchedProcess:
        process = WatchedProcess(name, self._folder, words)
        line = await process.start()
        assert line, process.log.read_text()
        self._stack.push_async_callback(process.end, END_SECONDS)
        self._stack.callback(proceed, [process])
        return process


def stop(processes: Sequence[WatchedProcess]) -> None:
    """Stop processes: they get no processor time, and their connections stay."""
    for one in processes:
        one.process.send_signal(signal.SIGSTOP)


def proceed(processes: Sequence[WatchedProcess]) -> None:
    """Let stopped processes go on."""
    for one in processes:
        if one.process.returncode is None:
            one.process.send_signal(signal.SIGCONT)


async def starve(process: WatchedProcess, share: float) -> None:
    """Hold a process to a share of a core until cancelled, as a container's limit does."""
    clock_of_process = (~process.process.pid << 3) | 2  # clock_getcpuclockid(3), in Linux
    left = 0.0
    while True:
        ends = time.monotonic() + PERIOD
        left = min(left, 0.0) + share * PERIOD
        until = time.clock_gettime(clock_of_process) + left
        if left > 0:
            proceed([process])
        while (now := time.monotonic()) < ends:
            left = until - time.clock_gettime(clock_of_process)
            if left <= 0:
                stop([process])
            await asyncio.sleep(LOOK_PAUSE if left > 0 else ends - now)
