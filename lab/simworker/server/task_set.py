"""A set of tasks with an owner: no task is leaked, and a failure is noticed."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """Long-lived tasks. `failed` raises the first error that ends one of them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or self.failed.done():
            return
        error = task.exception()
        if error is not None:
            self.failed.set_exception(error)

    async def close(self) -> None:
        """Cancel the remaining tasks and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.failed.cancel()
        if not self.failed.cancelled():
            # Mark the error as read: the garbage collector would log it otherwise.
            self.failed.exception()
