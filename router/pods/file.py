"""Reads pods from a file, and again after each change of it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from indexer.process.reread import read_bytes
from router.config import read as read_config
from router.config import schema as config
from router.pods.discover import FoundPod

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
MOST_BYTES = 16 << 20
"""Largest file, enough for fifty thousand pods."""


class FileSource:
    """Reads [[pods]] from a file; while it cannot be read, the pods stay as they were."""

    def __init__(
        self, path: Path, models: Sequence[config.ModelSpec], *, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self.name = f"pods-file {path}"
        self._path = path
        self._models = models
        self._look_seconds = look_seconds

    async def look(self) -> Mapping[str, FoundPod]:
        """Return the pods of this moment by id. Raises OSError or ConfigError."""
        return self._pods(await self._read())

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        """Yield all pods by id, now and after each change of the file."""
        before: bytes | None = None
        problem = ""
        while True:
            try:
                raw = await self._read()
                if raw != before:
                    before = raw
                    pods = self._pods(raw)
                    if not pods:
                        log.warning("%s lists no pods", self.name)
                    yield pods
                problem = ""
            except (OSError, read_config.ConfigError) as error:
                brief = str(error) if isinstance(error, OSError) else error.brief
                if brief != problem:
                    problem = brief
                    log.error("pods-file: %s; the pods stay as they were", brief)  # noqa: TRY400
            await asyncio.sleep(self._look_seconds)

    async def _read(self) -> bytes:
        return await asyncio.to_thread(read_bytes, self._path, MOST_BYTES)

    def _pods(self, raw: bytes) -> Mapping[str, FoundPod]:
        pods = read_config.parse_pods(raw, str(self._path), self._models)
        return {pod.id: FoundPod(pod) for pod in pods}
