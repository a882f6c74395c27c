"""Sweeps the index; only one of the processes that are connected to it does so at a time.

The process that has the lease sweeps. When its pass is over it lets the lease run out: that is the pause
until the next pass, which any process may make. The lease of a sweeper that dies runs out as well. The
lease only spares work: two sweepers at once, or one whose lease ran out while it stood still, do no
harm (`indexer.shared.layout.record.Living`).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.schema import SchemaError, ensure_call, fits, judge
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandFailedError,
    CommandRefusedError,
    Redis,
    good,
    script,
)
from warmpath.indexer.shared.sweep.mend import Swept
from warmpath.indexer.shared.sweep.one_pass import DEAD_SECONDS, Pass

log = logging.getLogger(__name__)

PAUSE = 60.0
FIELDS_PER_SECOND = 5_000.0
LEASE = 15.0
"""Seconds for which a process may sweep alone; it renews this lease when a third of it is over."""
TIMEOUT = 5.0
LEAST_SLEEP = 0.01
"""The shortest sleep, seconds: a shorter one takes much longer than it says."""
ATTEMPTS = 3
"""How often a pass is begun, at most, where connections are lost or made meanwhile."""
AT_REST = "rest "
"""Begins the lease's value while nobody sweeps; the last sweeper's name follows."""


class LeaseLostError(Exception):
    """The lease on sweeping has passed to another process."""


class DisruptedError(Exception):
    """Another server may answer now than at the beginning of the pass."""


SWEEP_ERRORS = (CommandFailedError, SchemaError, LeaseLostError, DisruptedError, ValueError)
"""The errors that end a pass early."""


class Sweeper:
    """Sweeps while it has the lease.

    `owner` is a readable name that no other process ever has. A pass begins `PAUSE` seconds after the
    last one of any process, and looks at no more than `fields_per_second`. `clock` is monotonic, in
    seconds.
    """

    def __init__(
        self,
        redis: Redis,
        names: KeyNames,
        *,
        owner: str,
        clock: Callable[[], float],
        fields_per_second: float = FIELDS_PER_SECOND,
        lease: float = LEASE,
        timeout: float = TIMEOUT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.counts = Swept()
        self._redis = redis
        self._names = names
        self._owner = owner
        self._clock = clock
        self._fields_per_second = fields_per_second
        self._lease = lease
        self._timeout = timeout
        self._sleep = sleep
        self._problem = ""

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except SWEEP_ERRORS as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    log.warning("the shared index was not swept to the end: %s", error)
            # A random pause, so that processes that started together do not ask together.
            share = random.uniform(0.25, 0.5)  # noqa: S311 - no secret
            await self._sleep(share * PAUSE)

    async def sweep(self, *, insist: bool = False) -> str:
        """Sweep once and return an empty text, or return the lease's value where another has the lease.

        The value is the name of the process that sweeps; in the pause after a sweep, `AT_REST` and its
        name. With `insist` that pause is ignored. Raises one of SWEEP_ERRORS; ValueError if a value
        cannot be read.
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
        # Where this fails, the lease runs out all the same.
        await self._hold(AT_REST + self._owner, PAUSE, self._owner)
        return ""

    async def _take(self, *, insist: bool) -> str:
        """Take the lease, and return an empty text; where it is taken already, return its value."""
        holder = await self._hold(self._owner, self._lease)
        if insist and holder.startswith(AT_REST):
            holder = await self._hold(self._owner, self._lease, holder)
        # This process may have it already, where the reply of an earlier attempt was lost.
        return "" if holder == self._owner else holder or "another process"

    async def _hold(self, value: str, seconds: float, expected: str = "") -> str:
        """Set the lease to a value, if it has the expected one; return its value afterwards."""
        words = (expected, value, max(1, round(seconds * 1000)))
        asked = [Call(script("hold"), (self._names.sweeper,), words)]
        (held,) = await self._redis.run(asked, timeout=self._timeout)
        return str(good(held).decode(errors="replace"))

    async def _is_there(self) -> bool:
        """Return whether there is an index. Raises SchemaError where it is another version's."""
        try:
            return await fits(self._redis, self._names, timeout=self._timeout)
        except (CommandRefusedError, SchemaError):
            # Where the key of the schema is damaged, this writes it anew.
            [reply] = await self._redis.run([ensure_call(self._names)], timeout=self._timeout)
            judge(self._names, good(reply))
            return True

    async def _pass(self) -> None:
        # Each node is connected to before disruptions count, since a first connection is one too.
        everywhere = [
            Command(("EXISTS", self._names.bucket(bucket))) for bucket in range(self._names.buckets)
        ]
        for reply in await self._redis.run(everywhere, timeout=self._timeout):
            good(reply)
        disruptions = self._redis.disruptions
        steps = Pass(self._names, self.counts).steps()
        renewed = due = self._clock()
        try:
            asked = next(steps)
            while True:
                now, looked = self._clock(), self.counts.fields
                if now - renewed > self._lease / 3:
                    if await self._hold(self._owner, self._lease, self._owner) != self._owner:
                        raise LeaseLostError("the lease ran out, and another process sweeps")
                    renewed = now
                if not asked:
                    await self._sleep(DEAD_SECONDS)
                replies = await self._redis.run(asked, timeout=self._timeout)
                if self._redis.disruptions != disruptions:
                    raise DisruptedError("a connection to Redis was lost or made meanwhile")
                asks = len(asked)
                asked = steps.send([good(reply) for reply in replies])
                # What a step took longer than planned is not made up for later.
                due = max(due, now) + (self.counts.fields - looked + asks) / self._fields_per_second
                if due - self._clock() > LEAST_SLEEP:
                    await self._sleep(due - self._clock())
        except StopIteration:
            return
        finally:
            steps.close()
