"""Measures the lag of the event loop that answers calls: by how much it wakes sleepers late.

A long computation in one call delays all others. The watch sleeps for less time than a call may block
the loop, so it notices every longer block, and measures it except for the rest of its own sleep.
"""

import asyncio
from collections.abc import Awaitable, Callable

PAUSE = 0.005
"""Seconds of each sleep: half of the time for which a call may block the loop."""


async def watch_lag(
    observe: Callable[[float], None],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Call `observe` with the seconds by which each sleep was late, for ever. `clock` is monotonic."""
    while True:
        begun = clock()
        await sleep(PAUSE)
        observe(max(0.0, clock() - begun - PAUSE))
