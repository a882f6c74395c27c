"""Tasks that run for as long as their process does."""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

log = logging.getLogger(__name__)


def watched(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task that is to run till the end, and say so at once where it fails."""

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if not task.cancelling():
                log.critical("%s has ended with something that it waited for: a bug of ours", name)
        elif task.exception() is not None:
            log.critical("%s has ended: a bug of ours", name, exc_info=task.exception())

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End tasks and wait until they have; what they failed with was said when they did."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
