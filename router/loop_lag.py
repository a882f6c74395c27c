"""The lag of the loop that answers: how late it wakes who waits, since something holds it.

A call that computes for long holds up all others. The watch sleeps for less time than a call may hold
the loop, so that no longer hold passes unseen; of each it sees all but the rest of its own sleep.
"""

import asyncio
from collections.abc import Awaitable, Callable

PAUSE = 0.005
"""Seconds of each sleep: half of what a call may hold the loop for."""


async def watch_lag(
    observe: Callable[[float], None],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Tell `observe` by how many seconds each sleep was late, for ever. `clock` is a monotonic one."""
    while True:
        begun = clock()
        await sleep(PAUSE)
        observe(max(0.0, clock() - begun - PAUSE))
