"""Runs the rounds in which a router shares its bookings. Picks never wait for them."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from warmpath.indexer.shared.redis.command import Redis
from warmpath.process.loop import in_turns
from warmpath.process.tasks import Work, cancel, kept
from warmpath.router.load.table import LoadTable
from warmpath.router.peers.exchange import PeerBookings
from warmpath.router.peers.received import EXPIRE_SECONDS

log = logging.getLogger(__name__)

INTERVALS = (0.05, 0.1)
"""Bounds of the random pause between two rounds, in seconds, so that routers do not synchronise."""
TIMEOUT_SECONDS = 0.5
"""Timeout of a round; the next one repeats commands without a reply."""
LOADS_AT_ONCE = 64
"""Loads recomputed before other tasks get a turn: about two milliseconds' work."""


@asynccontextmanager
async def sharing(
    bookings: PeerBookings,
    loads: LoadTable,
    redis: Redis,
    *,
    reported: Callable[[bytes], None],
    read: Callable[[], None],
    rng: Random,
    pause: tuple[float, float] = INTERVALS,
) -> AsyncIterator[None]:
    """Share bookings while the context is open; `reported` receives reports that others hand on.

    `read` is called when others' bookings were read. `pause` bounds the pause between two rounds.
    The picker must run in the same event loop.
    """

    async def exchange() -> None:
        replies = await redis.run(bookings.ask(time.monotonic()), timeout=TIMEOUT_SECONDS)
        for report in bookings.answer(replies, time.monotonic()):
            reported(report)

    async def share() -> None:
        said, seen, had_problem = "", "", False
        while True:
            await exchange()
            # A pick that comes in between computes the loads that it needs.
            async for name in in_turns(loads.take_changes(time.monotonic()), LOADS_AT_ONCE):
                loads.renew(*name, time.monotonic())
            read()
            # At the start of several processes one round may go without an answer.
            is_lasting, seen = bookings.problem == seen, bookings.problem
            if is_lasting and seen != said:
                said = seen
                if said:
                    log.warning("bookings are not shared with other routers: %s", said)
                else:
                    log.info("bookings are shared with other routers again")
            if (problem := bookings.received.seed_problem) and not had_problem:
                log.warning("%s", problem)
            had_problem = bool(problem)
            await asyncio.sleep(rng.uniform(*pause))

    task = kept(Work("sharing bookings with other routers", share))
    try:
        yield
    finally:
        await cancel([task])
        # The last round takes the reports for other routers that came while calls were ending.
        handed_on = bookings.relay.handed_on
        await exchange()
        log.info(
            "%d reports were handed on to other routers, which count the %d bookings of this router that"
            " have not ended for %g s more at most",
            bookings.relay.handed_on - handed_on, bookings.open, EXPIRE_SECONDS,
        )  # fmt: skip
        if lost := bookings.relay.waiting:
            log.warning("%d reports for other routers are lost: Redis did not take them", lost)
        await redis.run(bookings.leave(time.monotonic()), timeout=TIMEOUT_SECONDS)
