"""Lets other tasks run in between the steps of a long loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")


async def in_turns(things: Iterable[T], at_once: int) -> AsyncIterator[T]:
    """Yield each of the things; let other tasks run after each `at_once` of them."""
    for number, one in enumerate(things, 1):
        yield one
        if not number % at_once:
            await asyncio.sleep(0)
