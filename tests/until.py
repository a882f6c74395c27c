"""Waiting in tests: what is waited for is looked at again and again."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Let the loop run until a condition holds; `what` describes it."""
    try:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what or condition} did not come about") from None
