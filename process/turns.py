"""Lets other tasks run in between the steps of a long loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

MANY_RANKS = 512
"""Scoring or weighing more ranks takes milliseconds, so other tasks run before the next step."""


async def turn_after(ranks: int) -> None:
    """Let other tasks run if the last step handled more than MANY_RANKS ranks."""
    if ranks > MANY_RANKS:
        await asyncio.sleep(0)


async def in_turns(things: Iterable[T], at_once: int) -> AsyncIterator[T]:
    """Yield each of `things`; let other tasks of the event loop run after every `at_once` of them."""
    for number, one in enumerate(things, 1):
        yield one
        if not number % at_once:
            await asyncio.sleep(0)
