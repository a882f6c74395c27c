"""What a process of ours makes of the signals that would kill it."""

import asyncio
import signal
from collections.abc import Callable

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Asked to end, by whoever started it or by a terminal that goes: what is known is saved first."""
IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
"""Mean nothing here, and would end a process that does not say so."""


def on_signals(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """Have `end` called when the process is asked to end, however often."""
    for name in ENDING:
        loop.add_signal_handler(name, end)
    for name in IGNORED:
        loop.add_signal_handler(name, _nothing)


def _nothing() -> None:
    """Go on."""
