"""Tells the log how many calls were refused since more come than a limit allows.

A line for each of them would cost what their early refusal saves.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

SECONDS = 10.0
"""Pause between two looks."""


class RefusalLog:
    """`counts` return how many calls were refused since the start, by the keys of their limits."""

    def __init__(self, counts: Mapping[str, Callable[[], int]]) -> None:
        self._counts = counts
        self._before = {limits: count() for limits, count in counts.items()}

    def look(self) -> None:
        """Log the calls that were refused since the last look, if there are any."""
        for limits, count in self._counts.items():
            now = count()
            refused, self._before[limits] = now - self._before[limits], now
            if refused:
                log.warning(
                    "%d calls were refused by %s: docs/operations.md#a-router-is-overloaded",
                    refused,
                    limits,
                )

    async def keep_looking(self, seconds: float = SECONDS) -> None:
        """Look every `seconds`, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.look()
