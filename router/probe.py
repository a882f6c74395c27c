"""What an engine says of itself over HTTP: whether it is up, what it serves, its cache and its load."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import aiohttp
import msgspec

from router.engine_load import NAMES, Observed, parse
from router.pods import Pod, Status

log = logging.getLogger(__name__)

FAILURES = 2
"""Looks in a row that must fail before a pod that was up is said to be down."""

REFUSES = 503
"""What /health answers where an engine itself says that it takes no requests: SGLang from SIGTERM on and
while it starts, vLLM while it drains and when its engine is dead. That counts at once."""

CAPACITY = re.compile(rb'^vllm:cache_config_info\{[^}\n]*\bnum_gpu_blocks="(\d+)"', re.MULTILINE)
MOST_BYTES = 8 << 20
"""Of an answer; a page of eight ranks' metrics is about 1 MB."""

Sink = Callable[[str, int, Observed], None]
"""Takes a pod's id, a rank's number and what was seen of it."""


class ServedModel(msgspec.Struct, frozen=True):
    """One entry of /v1/models."""

    id: str


class Listed(msgspec.Struct, frozen=True):
    """The answer of /v1/models."""

    data: list[ServedModel]


class Prober:
    """Looks at one pod every `interval` seconds, for at most `timeout` each time, over one connection.

    What the metrics of an `engine` (`router.engine_load.NAMES`) say of its load goes to `observed`, on
    the prober's event loop, with the time of the answer by `clock`.
    """

    def __init__(
        self,
        pod: Pod,
        *,
        interval: float,
        timeout: float,
        engine: str = "vllm",
        observed: Sink | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pod = pod
        self._interval = interval
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._engine = engine
        self._observed = observed
        self._clock = clock
        self._failures = 0

    async def run(self) -> None:
        """Look until cancelled."""
        one = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(connector=one, timeout=self._timeout) as session:
            while True:
                await self.look(session)
                await asyncio.sleep(self._interval)

    async def look(self, session: aiohttp.ClientSession) -> None:
        """Look once."""
        before = self._pod.status
        status, problem = 0, ""
        try:
            status, _ = await self._answer(session, "/health")
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = str(error) or "no answer in time"
        else:
            problem = "" if status == 200 else f"/health answers {status}"
        self._failures = self._failures + 1 if problem else 0
        if not problem:
            page = await self._load(session)
            well = before if before.healthy else await self._learn(session, page)
            self._pod.status = replace(well, looked_at=self._clock())
        elif before.healthy is None or status == REFUSES or self._failures >= FAILURES:
            self._pod.status = Status(
                healthy=False,
                reason=problem,
                models=before.models,
                refuses=status == REFUSES,
            )
        if self._pod.status.healthy != before.healthy:
            state = "up" if self._pod.status.healthy else "down"
            log.info("pod %s: %s: %s", self._pod.id, state, self._pod.status.reason)

    async def _load(self, session: aiohttp.ClientSession) -> bytes:
        """Hand on what the engine says of its load; return the page that says it, or else the last."""
        page = b""
        for path in NAMES[self._engine].paths:
            page = await self._get(session, path)
            ranks = len(self._pod.ranks)
            seen = parse(self._engine, page, ranks=ranks, at=self._clock())
            if self._observed is not None:
                for rank, observed in seen.items():
                    self._observed(self._pod.id, rank, observed)
            if seen:
                break
        return page

    async def _learn(self, session: aiohttp.ClientSession, metrics: bytes) -> Status:
        """Ask an engine that has come up what it serves, and learn the size of its cache."""
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
        """Return an answer; empty where there is none."""
        try:
            status, answer = await self._answer(session, path)
        except (aiohttp.ClientError, TimeoutError):
            return b""
        return answer if status == 200 else b""

    async def _answer(self, session: aiohttp.ClientSession, path: str) -> tuple[int, bytes]:
        """Return the status and the body of an answer; an empty one where it is past all measure."""
        async with session.get(f"http://{self._pod.address}{path}") as response:
            answer = bytearray()
            async for chunk in response.content.iter_any():
                answer += chunk
                if len(answer) > MOST_BYTES:
                    return response.status, b""
            return response.status, bytes(answer)
