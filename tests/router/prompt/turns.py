"""How often work lets others have their turn."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def turns_and_result(work: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
    """Return how often some work lets others have their turn, and what it returns."""

    async def run() -> tuple[int, Any]:
        turns = 0
        while True:
            try:
                work.send(None)
            except StopIteration as end:
                return turns, end.value
            turns += 1

    return asyncio.run(run())
