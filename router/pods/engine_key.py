"""The API key that a pod's engine asks for (`--api-key` of vLLM and SGLang)."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from warmpath.router.config.files import EngineKeyError, read_engine_key

REFUSALS = frozenset({401, 403})
"""HTTP statuses of an engine, or of a proxy before it, that refuses a request for its key."""


class EngineKey:
    """The key in a file, read before it is first sent, and again after the engine has refused it."""

    def __init__(self, path: Path | None = None) -> None:
        """`path` is None for an engine that asks for no key."""
        self._path = path
        self._key = ""
        self._problem = ""

    async def headers(self) -> Mapping[str, str]:
        if not self._key:
            await self.read_again()
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    async def read_again(self) -> bool:
        """Read the file; return whether it has another key than before. Raises nothing."""
        before = self._key
        try:
            if self._path is not None:
                self._key = await asyncio.to_thread(read_engine_key, self._path)
            self._problem = ""
        except EngineKeyError as error:
            self._problem = str(error)
        return self._key != before

    def advice(self) -> str:
        """Return the reason of a refusal and what to do about it."""
        if self._problem:
            return f"key-file cannot be used: {self._problem}"
        if self._path is None:
            return "the engine wants its API key: name a file with it in the pod's key-file"
        return f"the engine refuses the key in {self._path}: put its API key into that file"
