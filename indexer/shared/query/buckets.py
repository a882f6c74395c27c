"""Decides which buckets answers may read, and finds out that Redis has lost one.

Each bucket has a circuit breaker (`Breaker`): one that fails several times in a row is left alone for a
while, and probed.

    closed --failures in a row--> open --after a pause the probe succeeds--> on probation
       ^                          ^  |                                         |  |
       |           the probe fails+--+                  one more failure: open-+  |
       +---------------------------------------------------------a success -------+

A read for an answer may be large, and a probe is small and may succeed where reads fail. So a probe that
succeeds does not make up for failed reads; it only lets the next answer read the bucket again. The pause
doubles each time, up to a bound, and is short again only after the success of a read.

Breakers are those of Michael Nygard's "Release It!" (2007), chapter 5. Probation is ours: closed, but
one failure opens the breaker again.

Redis may drop one key, or all of them, while every connection stays. A bucket that is made again after
that has another time (`names.BORN`), and a bucket that is not there has none. Where Redis loads old
data, a bucket has the time that it had, but fewer writes than before (`names.WRITES`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from warmpath.indexer.shared.layout.names import BORN, WRITES, KeyNames, is_credible
from warmpath.indexer.shared.records.registry import AWAY
from warmpath.indexer.shared.redis.command import Command, CommandFailedError, Redis, Reply
from warmpath.indexer.trust import Level, Trust

log = logging.getLogger(__name__)

FAILURES = 3
"""How many failures in a row open a breaker."""
PAUSE = 0.25
"""Seconds from the opening to the first probe."""
LONGEST_PAUSE = 8.0
"""The longest pause between two probes, seconds."""


class Breaker:
    """Decides whether callers may ask a bucket. `now` is a monotonic clock's time, in seconds."""

    def __init__(self) -> None:
        self.openings = 0
        """How often the breaker has opened; a failed probe does not count."""
        self._failures = 0
        self._pause = PAUSE
        self._probe_at: float | None = None
        """When the next probe is due; None while it is closed."""

    @property
    def is_closed(self) -> bool:
        return self._probe_at is None

    def is_due(self, now: float) -> bool:
        """Return whether a probe is due; the caller then makes it and passes the result to `probed`."""
        return self._probe_at is not None and now >= self._probe_at

    def probed(self, now: float, *, ok: bool) -> None:
        """Take the result of a probe that was due."""
        if ok:
            self._probe_at = None
            self._failures = FAILURES - 1
        else:
            self._open(now)

    def succeeded(self) -> None:
        """Count a success: if the breaker is closed, earlier failures are forgotten."""
        if self.is_closed:
            self._failures = 0
            self._pause = PAUSE

    def failed(self, now: float) -> None:
        """Count a failure, if the breaker is closed; too many in a row open it."""
        if not self.is_closed:
            return
        self._failures += 1
        if self._failures >= FAILURES:
            self.openings += 1
            self._open(now)

    def _open(self, now: float) -> None:
        self._failures = 0
        self._probe_at = now + self._pause
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)


LOOK_SECONDS = 0.25
"""Pause between two checks whether probes are due."""
PROBE = b"probe"
"""A field that no bucket has."""


class Reach:
    """The breakers of all buckets. `timeout` bounds a probe, seconds; only one thread calls.

    `doubt` is called with each new value of `trouble`.
    """

    def __init__(
        self,
        redis: Redis,
        names: KeyNames,
        *,
        timeout: float,
        doubt: Callable[[Trust | None], None],
        clock: Callable[[], float],
    ) -> None:
        self.problem = ""
        """The last failure; empty after a read without failures while no bucket is left alone."""
        self.trouble: Trust | None = None
        """The doubt about all answers while buckets are left alone; None while no bucket is."""
        self._redis = redis
        self._names = names
        self._timeout = timeout
        self._doubt = doubt
        self._clock = clock
        self._breakers = [Breaker() for _ in range(names.buckets)]
        self._failing = asyncio.Event()

    def may_ask(self, bucket: int) -> bool:
        """Whether answers may read a bucket: its breaker is closed."""
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
        due = {number for number, breaker in enumerate(self._breakers) if breaker.is_due(now)}
        numbers = [
            number
            for number, breaker in enumerate(self._breakers)
            if number in due or (all_buckets and breaker.is_closed)
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
            if number in due:
                breaker.probed(now, ok=not problem)
            elif problem and breaker.is_closed:
                breaker.failed(now)
                failed = True
        self._update_trouble()
        return failed

    @property
    def open_buckets(self) -> int:
        return sum(not breaker.is_closed for breaker in self._breakers)

    @property
    def openings(self) -> int:
        """How often a bucket came to be left alone since the start, failed probes not counted."""
        return sum(breaker.openings for breaker in self._breakers)

    def _update_trouble(self) -> None:
        count, before = self.open_buckets, self.trouble
        reason = f"{self.problem}; {count} of {len(self._breakers)} buckets are left alone"
        if not count and before is not None:
            self.trouble = None
            self._doubt(None)
            log.info("the shared index can be read again")
        elif count and (before is None or before.reason != reason):
            if before is None:
                log.warning("%s", reason)
            since = before.since if before else self._clock()
            self.trouble = Trust(Level.DEGRADED, reason, since)
            self._doubt(self.trouble)


def problem_of(reply: Reply, fields: int) -> str:
    """Return the problem of a reply to an HMGET; empty for a good reply."""
    if isinstance(reply, CommandFailedError):
        return f"{AWAY}{reply}"
    if not isinstance(reply, list) or len(reply) != fields:
        return "the shared index sent a reply that does not fit the request"
    return ""


LIFE = BORN, WRITES
"""The fields to read for a bucket's life."""
Life = tuple[bytes | None, bytes | None]
"""The values of the fields `LIFE`; None for a field that is not there."""


class Lives:
    """Calls `lost` where a bucket was made again since it was last read, is gone, or has gone back.

    The first reading of a bucket calls `lost` too, since nobody knows what happened before.
    """

    def __init__(self, names: KeyNames, lost: Callable[[], None]) -> None:
        self.losses = 0
        """How often `lost` was called."""
        self._names = names
        self._lost = lost
        self._of: dict[int, tuple[bytes | None, int, float]] = {}
        """When each bucket was made, its writes by then, and when that was read."""
        self._read_at: int | None = None
        """The value of `Redis.disruptions` when all buckets were read; None if `ask` has to."""

    def ask(self, disruptions: int) -> list[Command]:
        """Return commands that read all buckets; none where that was done since the last disruption.

        A doubt, or a loss that was found since, makes it read them too.
        """
        if self._read_at == disruptions:
            return []
        buckets = range(self._names.buckets)
        return [Command(("HMGET", self._names.bucket(bucket), *LIFE)) for bucket in buckets]

    def doubt(self) -> None:
        """Make the next `ask` read all buckets, since some were probably created anew."""
        self._read_at = None

    def take(self, replies: Sequence[Reply], disruptions: int, asked_at: float, now: float) -> None:
        """Take in the replies to what `ask(disruptions)` returned; both times are of one clock."""
        read: dict[int, Life] = {
            bucket: (reply[0], reply[1])
            for bucket, reply in enumerate(replies)
            if isinstance(reply, list) and len(reply) == len(LIFE)
        }
        self.compare(read, asked_at, now)
        if len(read) == self._names.buckets:
            self._read_at = disruptions

    def compare(self, read: Mapping[int, Life], asked_at: float, now: float) -> None:
        """Compare what was read with what is known, by bucket; the times are of one clock."""
        is_lost = False
        for bucket, (born, writes) in read.items():
            count = int(writes) if writes and is_credible(writes) else 0
            before = self._of.get(bucket)
            if before is None or before[0] != born:
                is_lost = True
            elif count < before[1]:
                # A reading that was asked for before the other one came may have been overtaken by it.
                if asked_at < before[2]:
                    continue
                is_lost = True
            self._of[bucket] = born, count, now
        if is_lost:
            # Redis mostly loses several buckets together. The next `ask` reads all, so that prompts
            # do not find the other losses one by one.
            self._read_at = None
            self.losses += 1
            self._lost()
