"""Lets other tasks run in between the steps of a long loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

MANY_RANKS = 512
"""To score or weigh more takes milliseconds: what follows has a step of its own."""


async def turn_after(ranks: int) -> None:
    """Let other tasks run if as many ranks were worked on in one go as take milliseconds."""
    if ranks > MANY_RANKS:
        await asyncio.sleep(0)


async def in_turns(things: Iterable[T], at_once: int) -> AsyncIterator[T]:
    """Yield each of the things; let other tasks run after each `at_once` of them."""
    for number, one in enumerate(things, 1):
        yield one
        if not number % at_once:
            await asyncio.sleep(0)
