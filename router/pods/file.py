"""Reads pods from a file, and again after each change of it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from warmpath.process.command_line import in_words
from warmpath.process.reread import read_bytes
from warmpath.router.config import read as read_config
from warmpath.router.config import schema as config
from warmpath.router.pods.absence import Absences
from warmpath.router.pods.discover import STAY, SourceState
from warmpath.router.pods.found_pod import FoundPod

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LACKING_SECONDS = 3.0
"""The file has to lack a pod for so long before that counts as gone: it may be written just now."""
SILENT_SECONDS = 30.0
"""A look that takes longer does not come back: the disk or its server is away."""
UNREADABLE = (
    "create the file, let this process read it, or change `pods-file`; it is looked at each second"
)
WRONG = (
    "correct the file; it is read again by itself, and `warmpath check-config` names every mistake"
)


class FileSource:
    """Reads [[pods]] from a file; while it cannot be read, the pods stay as they were."""

    def __init__(
        self,
        path: Path,
        models: Sequence[config.ModelSpec],
        *,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = SourceState(f"pods-file {path}", "", clock, look_seconds + SILENT_SECONDS)
        self._path = path
        self._models = models
        self._look_seconds = look_seconds
        self._clock = clock

    async def look(self) -> Mapping[str, FoundPod]:
        return self._pods(await self._read())

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        before: bytes | None = None
        is_wrong = False
        absences = Absences(LACKING_SECONDS)
        pods: Mapping[str, FoundPod] = {}
        while True:
            try:
                raw = await self._read()
                if raw != before:
                    before, is_wrong = raw, True
                    pods = self._pods(raw)
                    is_wrong = False
                    if not pods:
                        log.warning("%s lists no pods", self.state.name)
                    self.state.answered()
                    yield absences.believe(pods, self._clock())
                elif not is_wrong:
                    self.state.answered()
                    if absences.are_there:
                        yield absences.believe(pods, self._clock())
            except OSError as error:
                problem = in_words(error).removeprefix(f"{self._path}: ")
                self.state.failed(problem, STAY, UNREADABLE)
            except read_config.ConfigError as error:
                self.state.failed(error.brief, STAY, WRONG)
            await asyncio.sleep(self._look_seconds)

    async def _read(self) -> bytes:
        return await asyncio.to_thread(read_bytes, self._path, read_config.MOST_BYTES)

    def _pods(self, raw: bytes) -> Mapping[str, FoundPod]:
        pods = read_config.parse_pods(raw, str(self._path), self._models)
        return {pod.id: FoundPod(pod) for pod in pods}
