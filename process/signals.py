"""Handles the signals that would kill the process."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

log = logging.getLogger(__name__)

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask the process to end, after it has saved its state."""
IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals without a meaning here, which would end a process that has no handler for them."""


def end_at_once() -> None:
    """End the process with status 0 at each signal that asks for its end, until `on_signals` is called.

    For a start that takes long and has nothing to save. Without a handler SIGTERM would not reach the
    first process of a container at all. SIGHUP and the ignored signals do nothing.
    """
    for name in ENDING:
        signal.signal(name, _end)
    for name in (signal.SIGHUP, *IGNORED):
        signal.signal(name, _ignore)


def _end(*_: object) -> None:
    log.info("the process was asked to end while it started")
    # An exception could be lost: the compiler is full of finalisers, whose exceptions Python drops.
    os._exit(0)


def _ignore(*_: object) -> None:
    """Do nothing."""


def on_signals(
    loop: asyncio.AbstractEventLoop,
    end: Callable[[], None],
    *,
    reload: Callable[[], None] | None = None,
) -> None:
    """Call `end` at each signal that asks the process to end; do nothing at those of IGNORED.

    If `reload` is given, SIGHUP calls it and not `end`: it is to read the configuration again.
    """
    for name in ENDING:
        loop.add_signal_handler(name, end)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
    for name in IGNORED:
        loop.add_signal_handler(name, _ignore)
