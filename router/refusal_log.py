"""Tells the log how many calls or connections were refused since more come than a limit allows.

A line for each of them would cost what their early refusal saves.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Pause between two looks."""


class Refusals(NamedTuple):
    """The refusals by some limits."""

    refused: Callable[[], int]
    """Returns how many were refused since the start."""
    runbook: str
    """The section of docs/guides/operate.md that says what to do, as in its address."""
    what: str = "calls"
    """What is refused."""
    last: Callable[[], str] = str
    """Returns the address of the last one's client; empty if it is not known."""


class RefusalLog:
    """Tells of the calls and connections that were refused, by the keys of their limits."""

    def __init__(self, refusals: Mapping[str, Refusals]) -> None:
        self._refusals = refusals
        self._before = {limits: one.refused() for limits, one in refusals.items()}

    def look(self) -> None:
        """Log how many were refused since the last look, if any were."""
        for limits, one in self._refusals.items():
            now = one.refused()
            refused, self._before[limits] = now - self._before[limits], now
            if refused:
                last = one.last()
                log.warning(
                    "%d %s were refused by %s%s: docs/guides/operate.md#%s",
                    refused,
                    one.what,
                    limits,
                    last and f", the last one from {last}",
                    one.runbook,
                )

    async def keep_looking(self, seconds: float = SECONDS) -> None:
        """Look every `seconds`, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.look()
