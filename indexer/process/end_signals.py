"""Handles the signals that would kill the process."""

import asyncio
import signal
from collections.abc import Callable

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask the process to end, after it has saved its state."""
IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals without a meaning here, which would end a process that has no handler for them."""


def on_signals(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """Call `end` at each signal that asks the process to end; ignore others."""
    for name in ENDING:
        loop.add_signal_handler(name, end)
    for name in IGNORED:
        loop.add_signal_handler(name, _nothing)


def _nothing() -> None:
    """Do nothing."""
