"""The end of a router, step by step; each step has its line in the log.

not ready ─► new calls are still answered ─► GOAWAY, new calls are refused ─► calls end ─► cut off
(drain-delay-seconds)                (drain-seconds)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from warmpath.router.drain import Drain
from warmpath.router.readiness import Readiness

log = logging.getLogger(__name__)


class Ending:
    """Ends a router. `release` lets go of the requests that wait for a pod.

    `delay_seconds` and `drain_seconds` are those of [server]; `sleep` takes seconds.
    """

    def __init__(
        self,
        readiness: Readiness,
        drain: Drain,
        *,
        delay_seconds: float,
        drain_seconds: float,
        release: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.delay_seconds = delay_seconds
        self.drain_seconds = drain_seconds
        self._readiness = readiness
        self._drain = drain
        self._release = release
        self._sleep = sleep

    async def run(self, tell: Callable[[], None], go_away: Callable[[], int]) -> None:
        """Take all steps; then the server can stop.

        `tell` informs clients that watch the health. `go_away` tells clients to call no more on their
        connections, and returns the number of those.
        """
        drain = self._drain
        # Nobody sends calls to a router that is not ready, so nobody has to learn that it ends.
        delay = self.delay_seconds if self._readiness.ready() else 0.0
        self._readiness.end()
        tell()
        log.info(
            "the process was asked to end: it is not ready from now on; calls are answered for %g s"
            " more, %d calls and %d streams are in progress",
            delay, drain.calls, drain.streams,
        )  # fmt: skip
        answered = drain.answered
        if delay:
            await self._sleep(delay)
        drain.refuse()
        self._release()
        connections = go_away()
        log.info(
            "new calls are refused, after %d calls since; GOAWAY on %d connections; %d calls and %d"
            " streams in progress have %g s",
            drain.answered - answered, connections, drain.calls, drain.streams, self.drain_seconds,
        )  # fmt: skip
        answered = drain.answered
        await drain.gone(self.drain_seconds)
        log.info(
            "%d calls have ended since and %d were refused; %d calls and %d streams are cut off",
            drain.answered - answered, drain.refused, drain.calls, drain.streams,
        )  # fmt: skip
