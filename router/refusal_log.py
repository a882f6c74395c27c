"""Tells the log how many calls or connections were refused since more come than a limit allows.

A line for each of them would cost what their early refusal saves.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Pause between two looks."""


class Refusals(NamedTuple):
    """The refusals by some limits."""

    limits: str
    """The keys of the limits."""
    refused: Callable[[], int]
    """Returns how many were refused since the start."""
    runbook: str
    """The section of docs/guides/operate.md that says what to do, as in its address."""
    what: str = "calls"
    """What is refused."""
    last: Callable[[], str] = str
    """Returns the address of the last one's client; empty if it is not known."""


async def keep_telling(refusals: Sequence[Refusals]) -> None:
    """Log how many were refused since the last look, if any were, until cancelled."""
    before = [one.refused() for one in refusals]
    while True:
        await asyncio.sleep(SECONDS)
        for at, one in enumerate(refusals):
            now = one.refused()
            refused, before[at] = now - before[at], now
            if refused:
                last = one.last()
                log.warning(
                    "%d %s were refused by %s%s: docs/guides/operate.md#%s",
                    refused,
                    one.what,
                    one.limits,
                    last and f", the last one from {last}",
                    one.runbook,
                )
