"""Tasks that run as long as their process."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds before work that has failed begins again."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work that runs as long as its process and is restarted when it fails."""

    name: str
    """A description for the log."""
    run: Callable[[], Coroutine[Any, Any, None]]
    """Starts the work, also after a failure."""
    failed: Callable[[str], None] = lambda _: None
    """Called with the reason of a failure, before the restart. It must mark the state that the work
    keeps current as doubtful."""


def kept(work: Work, *, pause: float = PAUSE) -> asyncio.Task[None]:
    """Start work and restart it `pause` seconds after it ends; cancel the task to end it.

    Each fault is logged once with its traceback, even if it recurs.
    """
    return asyncio.create_task(_keep(work, pause), name=work.name)


async def _keep(work: Work, pause: float) -> None:
    said: set[tuple[str, str, int]] = set()
    while True:
        # A new task for each attempt, since a failed TaskGroup leaves its task counted as cancelled.
        attempt = asyncio.create_task(work.run(), name=work.name)
        try:
            await asyncio.wait([attempt])
        except asyncio.CancelledError:
            await cancel([attempt])
            raise
        error = asyncio.CancelledError() if attempt.cancelled() else attempt.exception()
        place = _place(error)
        if place not in said:
            said.add(place)
            log.critical("%s has ended: a bug of ours; it begins again", work.name, exc_info=error)
        try:
            work.failed(f"a bug of ours: {place[0]}")
        except Exception:
            log.exception("%s: its state could not be marked as doubtful", work.name)
        del attempt, error
        await asyncio.sleep(pause)


def _place(error: BaseException | None) -> tuple[str, str, int]:
    """Return a fault's type, and the file and line where it was raised."""
    if error is None:
        return "it ended", "", 0
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return type(error).__name__, *where


def watched(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task that is expected to end; log its failure at once."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s has failed: a bug of ours", name, exc_info=task.exception())

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their failures were logged when they happened."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
