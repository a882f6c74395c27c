"""Decides which buckets answers may read: each has a circuit breaker (`breaker`), and is probed.

A read for an answer may be large, and a probe is small. So a probe that succeeds does not make up for
failed reads; it only lets the next answer read the bucket again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.breaker import Breaker
from warmpath.indexer.shared.records.registry import AWAY
from warmpath.indexer.shared.redis.command import (
    Command,
    CommandRefusedError,
    Redis,
    Reply,
    UnreachableError,
)
from warmpath.indexer.trust import Level, Trust

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""Pause between two checks whether probes are due."""
PROBE = b"probe"
"""A field that no bucket has."""


class Reach:
    """The breakers of all buckets. `timeout` bounds a probe, seconds; only one thread calls."""

    def __init__(
        self, redis: Redis, names: KeyNames, *, timeout: float, clock: Callable[[], float]
    ) -> None:
        self.problem = ""
        """The last failure; empty after a read without failures while no bucket is left alone."""
        self.trouble: Trust | None = None
        """The doubt about all answers while buckets are left alone; None while no bucket is."""
        self._redis = redis
        self._names = names
        self._timeout = timeout
        self._clock = clock
        self._breakers = [Breaker() for _ in range(names.buckets)]
        self._failing = asyncio.Event()

    def may_ask(self, bucket: int) -> bool:
        """Whether answers may read a bucket, since it is not left alone."""
        return self._breakers[bucket].is_closed

    def note(self, answered: Iterable[int], failed: Mapping[int, str]) -> None:
        """Take the outcome of a read: the buckets that answered, and why others did not."""
        now = self._clock()
        for bucket in answered:
            self._breakers[bucket].succeeded()
        for bucket, problem in failed.items():
            self._breakers[bucket].failed(now)
            self.problem = problem
        if failed:
            self._failing.set()
            self._update_trouble()
        elif self.trouble is None:
            self.problem = ""

    async def run(self) -> None:
        """Probe buckets that are left alone, and after a failure all buckets, until cancelled."""
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
        """Probe the buckets whose probe is due; with `all_buckets` also those that are not left alone.

        After a failed read all are probed: so it takes a few failed reads to notice that a node is
        gone, and not a few for each of its buckets. Returns whether a bucket failed that was not
        left alone yet.
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
        self._update_trouble()
        return failed

    @property
    def open_buckets(self) -> int:
        """How many buckets are left alone."""
        return sum(not breaker.is_closed for breaker in self._breakers)

    @property
    def openings(self) -> int:
        """How often a bucket came to be left alone since the start, failed probes not counted."""
        return sum(breaker.openings for breaker in self._breakers)

    def _update_trouble(self) -> None:
        """Update `trouble`; log when the first bucket is left alone and when all are asked again."""
        count, before = self.open_buckets, self.trouble
        if not count:
            self.trouble = None
            if before is not None:
                log.info("the shared index can be read again")
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
    """Return the problem of a reply to an HMGET; empty for a good reply."""
    if isinstance(reply, UnreachableError | CommandRefusedError):
        return f"{AWAY}{reply}"
    if not isinstance(reply, list) or len(reply) != fields:
        return "the shared index sent a reply that does not fit the request"
    return ""
