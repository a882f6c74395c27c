"""Waits of tests for what comes about by itself; a test's own time bounds them."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(holds: Callable[[], Any], pause: float = 0.01) -> Any:
    """Wait until `holds` returns, or what it returns has as its result, something true; return that."""
    while True:
        found = holds()
        if inspect.iscoroutine(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(pause)
