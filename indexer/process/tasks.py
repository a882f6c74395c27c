"""Tasks that run for as long as their process does."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds before work that has failed begins again."""


def _nothing(_: str) -> None:
    """Leave all as it is: the work keeps nothing that could be untrue."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work that is to go on for as long as its process does."""

    name: str
    """In words, for the log."""
    run: Callable[[], Coroutine[Any, Any, None]]
    """Begins it, and begins it again."""
    failed: Callable[[str], None] = _nothing
    """Takes the reason why it failed, before it begins again. Nothing that the work keeps current may
    be believed until then."""


def kept(work: Work, *, pause: float = PAUSE) -> asyncio.Task[None]:
    """Start work, and begin it again after `pause` seconds whenever it ends; cancel the task to end it.

    A fault is logged once with its traceback, however often it comes back.
    """
    return asyncio.create_task(_keep(work, pause), name=work.name)


async def _keep(work: Work, pause: float) -> None:
    said: set[tuple[str, str, int]] = set()
    while True:
        # A task of its own each time: one in which a group has failed counts as being cancelled.
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
            log.exception("%s could not be doubted", work.name)
        del attempt, error
        await asyncio.sleep(pause)


def _place(error: BaseException | None) -> tuple[str, str, int]:
    """Return a fault's kind, and the file and line where it arose."""
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
    """Start a task that comes to an end of its own, and say so at once where it fails."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s has failed: a bug of ours", name, exc_info=task.exception())

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End tasks and wait until they have; what they failed with was said when they did."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
