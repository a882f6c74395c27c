"""Processes that a test ends and starts again, and ten thousand requests meanwhile."""

import asyncio
import json
import os
import signal
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from tests.router.endpoint_picker.behind_envoy import Front

REQUESTS = 10_000
CLIENTS = 32


class Process:
    """A process that a test ends and starts again, by its own id."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self._command = command
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._command, stdout=log, stderr=log, env=os.environ
            )

    async def end(self, how: signal.Signals) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        await self._process.wait()

    async def roll(self, how: signal.Signals) -> None:
        await self.end(how)
        await self.start()


@asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for one in processes:
            await one.start()
            stack.push_async_callback(one.end, signal.SIGTERM)
        yield


async def answers(url: str, status: int, tls: ssl.SSLContext | None = None) -> bool:
    async with aiohttp.ClientSession() as http:
        try:
            async with http.get(url, ssl=tls or True) as response:
                return response.status == status
        except aiohttp.ClientError:
            return False


class Callers:
    """Clients that send requests one after the other; each has a few prompts of its own."""

    def __init__(self, envoy: Front) -> None:
        self._envoy = envoy
        self.begun = 0
        self.ended = 0
        self.outcomes: Counter[str] = Counter()
        self.pods: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*(self._call(number) for number in range(CLIENTS)))

    async def _call(self, number: int) -> None:
        turn = 0
        while self.begun < REQUESTS:
            self.begun += 1
            turn += 1
            first = 1000 * number + 10 * (turn % 7)
            body = {"model": "demo", "prompt": [*range(first, first + 100)], "max_tokens": 2}
            body["prompt"] = [token % 2000 for token in body["prompt"]]
            try:
                answer = await self._envoy.post(body)
            except aiohttp.ClientError as error:
                self.outcomes[type(error).__name__] += 1
            else:
                reason = answer.headers.get("x-warmpath-reason", "")
                self.outcomes[f"{answer.status} {reason}".strip()] += 1
                self.pods[answer.pod] += 1
                if answer.status == 200:
                    assert json.loads(answer.body)["usage"]["completion_tokens"] == 2
            self.ended += 1

    async def until(self, share: float) -> None:
        """Wait until a share of all requests have ended."""
        while self.ended < share * REQUESTS:
            await asyncio.sleep(0.01)
