"""Sweeping the index, by one of all that are connected to it at a time.

Whoever has the lease sweeps. When its pass is over, the lease is left to run out: that is the pause
till the next pass, whichever process makes it. A sweeper that dies leaves a lease that runs out as
well. The lease spares work and no more: what two sweepers do at once, or one whose lease ran out
while it stood still, is as harmless as what one does (`indexer.shared.layout.living`).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from indexer.shared.layout.names import Names
from indexer.shared.layout.schema import SchemaError, fits
from indexer.shared.redis.command import (
    Call,
    Command,
    Redis,
    RefusedError,
    UnreachableError,
    good,
    script,
)
from indexer.shared.sweep.one_pass import Swept, sweep

log = logging.getLogger(__name__)

PAUSE = 60.0
FIELDS_PER_SECOND = 5_000.0
LEASE = 15.0
"""Seconds; renewed when a third of it is over."""
TIMEOUT = 5.0
ATTEMPTS = 3
"""Passes begun anew, one after the other, where a connection was lost or made."""
AT_REST = "rest "
"""Before the name of who swept last, in the lease while nobody sweeps."""


@dataclass(slots=True)
class Counts(Swept):
    """What a sweeper did since it started."""

    passes: int = 0
    """That went to the end."""
    failed: int = 0
    """That ended early."""


class LeaseLostError(Exception):
    """Another one sweeps now."""


class DisruptedError(Exception):
    """Another server may answer than the one that a bucket was begun at."""


SWEEP_ERRORS = (
    RefusedError,
    UnreachableError,
    SchemaError,
    LeaseLostError,
    DisruptedError,
    ValueError,
)
"""What ends a pass early."""


class Sweeper:
    """Sweeps while it has the lease.

    `owner` is unique among all processes, at all times; people read it. A pass begins `pause` seconds
    after the last one, whoever made that, and looks at no more than `fields_per_second`. `clock` is
    monotonic, in seconds; `chance` returns 0 to 1.
    """

    def __init__(
        self,
        redis: Redis,
        names: Names,
        *,
        owner: str,
        clock: Callable[[], float],
        pause: float = PAUSE,
        fields_per_second: float = FIELDS_PER_SECOND,
        lease: float = LEASE,
        timeout: float = TIMEOUT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.counts = Counts()
        self._redis = redis
        self._names = names
        self._owner = owner
        self._clock = clock
        self._pause = pause
        self._fields_per_second = fields_per_second
        self._lease = lease
        self._timeout = timeout
        self._sleep = sleep
        self._chance = chance
        self._problem = ""

    async def run(self) -> None:
        """Sweep whenever it is time to and nobody else does; returns only when cancelled."""
        while True:
            try:
                await self.sweep()
            except SWEEP_ERRORS as error:
                self._tell(str(error))
            # Not all processes that started together ask together.
            await self._sleep(self._pause * (0.25 + 0.25 * self._chance()))

    def _tell(self, problem: str) -> None:
        """Say why a pass ended early, once for each reason in a row."""
        if problem != self._problem:
            self._problem = problem
            log.warning("the shared index was not swept to the end: %s", problem)

    async def sweep(self, *, insist: bool = False) -> str:
        """Make a pass; return who has the lease where that is another, else nothing.

        With `insist` the pause since the last pass is not waited for. Raises one of SWEEP_ERRORS;
        ValueError is for what cannot be read.
        """
        holder = await self._take(insist=insist)
        if holder:
            return holder
        for attempt in range(ATTEMPTS):
            try:
                if await self._is_there():
                    await self._pass()
                break
            except BaseException as error:
                self.counts.failed += 1
                if not isinstance(error, DisruptedError) or attempt == ATTEMPTS - 1:
                    raise
        self.counts.passes += 1
        self._problem = ""
        log.debug("the shared index was swept: %s", self.counts)
        # Where it cannot be said that the pass is over the lease runs out by itself.
        await self._hold(AT_REST + self._owner, self._pause, self._owner)
        return ""

    async def _take(self, *, insist: bool) -> str:
        """Take the lease; return who has it where it cannot be had."""
        holder = await self._hold(self._owner, self._lease)
        if insist and holder.startswith(AT_REST):
            holder = await self._hold(self._owner, self._lease, holder)
        # One that was taken before, and the reply lost, is told as its own too.
        return "" if holder == self._owner else holder or "another one"

    async def _hold(self, value: str, seconds: float, expected: str = "") -> str:
        """Set the lease to a value, if it has the expected one; return what it has then."""
        words = (expected, value, _ms(seconds))
        asked = [Call(script("hold"), (self._names.sweeper,), words)]
        (held,) = await self._redis.run(asked, timeout=self._timeout)
        return str(good(held).decode(errors="replace"))

    async def _is_there(self) -> bool:
        """Return whether there is an index. Raises SchemaError where it is another version's."""
        return await fits(self._redis, self._names, timeout=self._timeout)

    async def _pass(self) -> None:
        # Every node is reached before it counts.
        everywhere = [
            Command(("HLEN", self._names.bucket(bucket))) for bucket in range(self._names.buckets)
        ]
        for reply in await self._redis.run(everywhere, timeout=self._timeout):
            good(reply)
        disruptions = self._redis.disruptions
        steps = sweep(self._names, self.counts)
        renewed = self._clock()
        try:
            asked = next(steps)
            while True:
                begun, looked = self._clock(), self.counts.fields
                if begun - renewed > self._lease / 3:
                    if await self._hold(self._owner, self._lease, self._owner) != self._owner:
                        raise LeaseLostError("the lease ran out, and another one sweeps")
                    renewed = begun
                replies = await self._redis.run(asked, timeout=self._timeout)
                if self._redis.disruptions != disruptions:
                    raise DisruptedError("a connection to Redis was lost or made meanwhile")
                asks = len(asked)
                asked = steps.send(replies)
                cost = (self.counts.fields - looked + asks) / self._fields_per_second
                await self._sleep(max(0.0, begun + cost - self._clock()))
        except StopIteration:
            return
        finally:
            steps.close()


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


async def sweep_forever(
    redis: Redis, names: Names, *, owner: str, clock: Callable[[], float], pause: float = PAUSE
) -> None:
    """Sweep whenever it is time to and nobody else does (`Sweeper`); returns only when cancelled."""
    await Sweeper(redis, names, owner=owner, clock=clock, pause=pause).run()
