"""Handles the signals that would kill the process."""

import asyncio
import signal
from collections.abc import Callable

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask the process to end, after it has saved its state."""
IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals without a meaning here, which would end a process that has no handler for them."""


def on_signals(
    loop: asyncio.AbstractEventLoop,
    end: Callable[[], None],
    *,
    reload: Callable[[], None] | None = None,
) -> None:
    """Call `end` at each signal that asks the process to end; ignore others.

    SIGHUP calls `reload` if there is one: then it asks for the configuration to be read again.
    """
    for name in ENDING:
        loop.add_signal_handler(name, end)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
    for name in IGNORED:
        loop.add_signal_handler(name, _nothing)


def _nothing() -> None:
    """Do nothing."""
