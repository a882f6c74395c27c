"""What an engine says of itself over HTTP: whether it is up, what it serves, how large its cache is."""

import asyncio
import logging
import re
from collections.abc import Sequence

import aiohttp
import msgspec

from router.pods import Pod, Status

log = logging.getLogger(__name__)

FAILURES = 2
"""Looks in a row that must fail before a pod that was up is said to be down."""

CAPACITY = re.compile(rb'^vllm:cache_config_info\{[^}\n]*\bnum_gpu_blocks="(\d+)"', re.MULTILINE)
MOST_BYTES = 8 << 20


class ServedModel(msgspec.Struct, frozen=True):
    """One entry of /v1/models."""

    id: str


class Listed(msgspec.Struct, frozen=True):
    """The answer of /v1/models."""

    data: list[ServedModel]


class Prober:
    """Looks at one pod every `interval` seconds, for at most `timeout` each time."""

    def __init__(self, pod: Pod, *, interval: float, timeout: float) -> None:
        self._pod = pod
        self._interval = interval
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._failures = 0

    async def run(self) -> None:
        """Look until cancelled."""
        async with aiohttp.ClientSession(timeout=self._timeout) as session:
            while True:
                await self.look(session)
                await asyncio.sleep(self._interval)

    async def look(self, session: aiohttp.ClientSession) -> None:
        """Look once."""
        before = self._pod.status
        try:
            async with session.get(f"http://{self._pod.address}/health") as response:
                problem = "" if response.status == 200 else f"/health answers {response.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
        self._failures = self._failures + 1 if problem else 0
        if not problem and not before.healthy:
            self._pod.status = await self._learn(session)
        elif problem and (before.healthy is None or self._failures >= FAILURES):
            self._pod.status = Status(healthy=False, reason=problem, models=before.models)
        if self._pod.status.healthy != before.healthy:
            state = "up" if self._pod.status.healthy else "down"
            log.info("pod %s: %s: %s", self._pod.id, state, self._pod.status.reason)

    async def _learn(self, session: aiohttp.ClientSession) -> Status:
        """Ask an engine that has come up what it serves, and learn the size of its cache."""
        metrics = await self._get(session, "/metrics")
        found = CAPACITY.search(metrics)
        if found:
            for rank in self._pod.ranks:
                # One is the null block, which is never cached.
                rank.learn_capacity(int(found[1]) - 1)
        return Status(healthy=True, reason="/health answers", models=await self._models(session))

    async def _models(self, session: aiohttp.ClientSession) -> Sequence[str]:
        try:
            listed = msgspec.json.decode(await self._get(session, "/v1/models"), type=Listed)
        except msgspec.MsgspecError:
            return ()
        return tuple(one.id for one in listed.data)

    async def _get(self, session: aiohttp.ClientSession, path: str) -> bytes:
        """Return an answer; empty where there is none or it is past all measure."""
        try:
            async with session.get(f"http://{self._pod.address}{path}") as response:
                answer = bytearray()
                async for chunk in response.content.iter_any():
                    answer += chunk
                    if len(answer) > MOST_BYTES:
                        return b""
                return bytes(answer) if response.status == 200 else b""
        except (aiohttp.ClientError, TimeoutError):
            return b""
