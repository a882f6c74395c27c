"""Begins the calls of all connections, a few in each turn of the event loop, address after address.

The loop runs whatever is ready before it reads a socket again. So thousands of calls that come at once,
and all begin at once, keep every other client waiting for seconds.
"""

import asyncio
from collections import deque
from collections.abc import Callable

MOST_AT_ONCE = 16
"""Most calls that begin in one turn; their first steps take some 5 ms."""


class Beginnings:
    """Lets calls begin, each by one call of the `begin` that `add` is given."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        """The `begin` of each waiting call, by address, in the order of the addresses' turns."""
        self._begun = 0
        """The number of calls that have begun in this turn."""

    def add(self, loop: asyncio.AbstractEventLoop, address: str, begin: Callable[[], None]) -> None:
        """Begin a call of an address now, or in a later turn."""
        if not self._begun:
            loop.call_soon(self._turn, loop)
        if self._begun < MOST_AT_ONCE:
            self._begun += 1
            begin()
        else:
            self._waiting.setdefault(address, deque()).append(begin)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = 0
        while self._waiting and self._begun < MOST_AT_ONCE:
            self._begun += 1
            address = next(iter(self._waiting))
            calls = self._waiting.pop(address)
            begin = calls.popleft()
            if calls:
                self._waiting[address] = calls
            begin()
        if self._begun:
            loop.call_soon(self._turn, loop)
