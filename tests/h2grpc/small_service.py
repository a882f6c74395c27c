"""A service of a few methods for tests of the transport."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.h2grpc.served import methods_of
from warmpath.h2grpc.method import Method


def _numbers(asked: bytes) -> list[int]:
    return [*map(int, re.findall(rb"[0-9]{1,7}", asked)), 0, 0]


class Service:
    """Methods that answer at once, never, at length or bit by bit; counts the handlers that run."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.read: list[bytes] = []
        """Messages of Take."""

    def methods(self) -> dict[str, Method]:
        """Return the methods of the service."""
        functions = {
            "uu_Echo": self._echo,
            "uu_Hold": self._hold,
            "uu_Large": self._large,
            "us_Many": self._many,
            "su_Take": self._take,
            "su_Deaf": self._deaf,
            "uu_Once": self._once,
            "ss_Each": self._each,
        }
        counted = {kind: self._counted(kind[3:], run) for kind, run in functions.items()}
        found = {f"/t.T/{name[8:]}": one for name, one in methods_of("t.T", **counted).items()}
        found["/t.T/Once"] = replace(found["/t.T/Once"], at_once=self._at_once)
        return found

    def _counted(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(asked: Any, context: Any) -> Any:
            self.begun[name] += 1
            self.running[name] += 1
            try:
                return await run(asked, context)
            finally:
                self.running[name] -= 1

        return counted

    async def _echo(self, asked: bytes, _: Any) -> bytes:
        return asked

    def _at_once(self, asked: bytes, _: Any) -> bytes | None:
        return None if b"wait" in asked else asked

    async def _once(self, asked: bytes, _: Any) -> bytes:
        return asked

    async def _hold(self, _: bytes, __: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def _large(self, asked: bytes, _: Any) -> bytes:
        return bytes(_numbers(asked)[0])

    async def _many(self, asked: bytes, context: Any) -> None:
        count, size = _numbers(asked)[:2]
        for _ in range(count):
            await context.write(bytes(size))

    async def _take(self, asked: Any, _: Any) -> bytes:
        async for one in asked:
            self.read.append(one)
        return b"%d" % len(self.read)

    async def _deaf(self, _: Any, __: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def _each(self, asked: Any, context: Any) -> None:
        async for one in asked:
            await context.write(one)
