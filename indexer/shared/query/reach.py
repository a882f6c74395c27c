"""Which buckets can be reached: each has a breaker, and small probes beside the answers.

What is asked for an answer may be large, and probes are not: that they succeed does not make up for
failures, it only lets something be tried again (`breaker`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from indexer.shared.layout.names import Names
from indexer.shared.query.breaker import Breaker
from indexer.shared.records.registry import AWAY
from indexer.shared.redis.command import Command, Redis, RefusedError, Reply, UnreachableError
from indexer.trust import Level, Trust

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Pause between two looks for probes that are due."""
PROBE = b"probe"
"""A field that no bucket has."""


class Reach:
    """What answers may ask for. `timeout` bounds a probe, seconds; one thread calls."""

    def __init__(
        self, redis: Redis, names: Names, *, timeout: float, clock: Callable[[], float]
    ) -> None:
        self.problem = ""
        """What went wrong last; empty after a read that went well, where nothing is left alone."""
        self.trouble: Trust | None = None
        """That buckets are left alone, and since when."""
        self._redis = redis
        self._names = names
        self._timeout = timeout
        self._clock = clock
        self._breakers = [Breaker() for _ in range(names.buckets)]
        self._failing = asyncio.Event()

    def may_ask(self, bucket: int) -> bool:
        """Whether a bucket is not left alone."""
        return self._breakers[bucket].is_closed

    def note(self, answered: Iterable[int], failed: Mapping[int, str]) -> None:
        """Take note of how a read has ended: buckets that answered, and why others did not."""
        now = self._clock()
        for bucket in answered:
            self._breakers[bucket].succeeded()
        for bucket, problem in failed.items():
            self._breakers[bucket].failed(now)
            self.problem = problem
        if failed:
            self._failing.set()
            self._tell()
        elif self.trouble is None:
            self.problem = ""

    async def run(self) -> None:
        """Probe what was left alone, and after a failure everything, until cancelled."""
        suspicious = False
        while True:
            suspicious = await self.probe(all_buckets=suspicious)
            try:
                async with asyncio.timeout(self._timeout if suspicious else LOOK_SECONDS):
                    await self._failing.wait()
                suspicious = True
            except TimeoutError:
                pass
            self._failing.clear()

    async def probe(self, *, all_buckets: bool) -> bool:
        """Ask buckets for next to nothing: those whose probe is due, and where a read has failed all.

        So a node that is gone is found out by a few reads, not by a few of each bucket. Returns whether
        any bucket failed that was not left alone yet.
        """
        now = self._clock()
        numbers = [
            number
            for number, breaker in enumerate(self._breakers)
            if (breaker.is_closed and all_buckets) or breaker.take_probe(now)
        ]
        if not numbers:
            return False
        replies = await self._redis.run(
            [Command(("HMGET", self._names.bucket(number), PROBE)) for number in numbers],
            timeout=self._timeout,
        )
        now = self._clock()
        failed = False
        for number, reply in zip(numbers, replies, strict=True):
            breaker, problem = self._breakers[number], problem_of(reply, 1)
            self.problem = problem or self.problem
            if not breaker.is_closed:
                breaker.probed(now, ok=not problem)
            elif problem:
                breaker.failed(now)
                failed = True
        self._tell()
        return failed

    @property
    def open_buckets(self) -> int:
        """How many buckets are left alone."""
        return sum(not breaker.is_closed for breaker in self._breakers)

    @property
    def openings(self) -> int:
        """How often buckets were left alone so far."""
        return sum(breaker.openings for breaker in self._breakers)

    def _tell(self) -> None:
        """Say so where buckets are left alone, and where they are asked again."""
        count, before = self.open_buckets, self.trouble
        if not count:
            self.trouble = None
            if before is not None:
                log.info("the shared index answers again")
            return
        if before is None:
            log.warning(
                "%s; %d of %d buckets are left alone", self.problem, count, len(self._breakers)
            )
        reason = f"{self.problem}; {count} of {len(self._breakers)} buckets are left alone"
        since = before.since if before else self._clock()
        if before is None or before.reason != reason:
            self.trouble = Trust(Level.DEGRADED, reason, since)

    def check(self) -> None:
        """Raise BrokenInvariantError where a breaker contradicts itself."""
        for breaker in self._breakers:
            breaker.check()


def problem_of(reply: Reply, fields: int) -> str:
    """Return what is wrong with a reply to an HMGET; empty for nothing."""
    if isinstance(reply, UnreachableError | RefusedError):
        return f"{AWAY}{reply}"
    if not isinstance(reply, list) or len(reply) != fields:
        return "the shared index answered what was not asked"
    return ""
