"""Tasks and their owner: none is leaked, and one that fails is noticed."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet:
    """Long-lived tasks. What ends one by an error is raised to whoever awaits `failed`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Start a task."""
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
        """Cancel all that is left and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.failed.cancel()
        if not self.failed.cancelled():
            # Whoever did not ask is not to be told by the garbage collector.
            self.failed.exception()
