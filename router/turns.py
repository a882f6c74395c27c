"""Turns of the loop: what goes over very much lets other calls have theirs in between."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")


async def in_turns(things: Iterable[T], at_once: int) -> AsyncIterator[T]:
    """Yield each of the things, and let others have their turn after so many of them."""
    for number, one in enumerate(things, 1):
        yield one
        if not number % at_once:
            await asyncio.sleep(0)
