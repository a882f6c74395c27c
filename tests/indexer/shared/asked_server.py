"""Redis that gets one command at a time: a real server whose clock and connections a test sets, or an edge."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

import redis

from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.schema import ensure_call, judge
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandRefusedError,
    Redis,
    Reply,
    UnreachableError,
    good,
)
from warmpath.indexer.shared.redis.connect import RedisSettings, connect

Result = TypeVar("Result")


class AskedServer:
    """A Redis connection as a replica uses it. Tests set the public attributes."""

    def __init__(self, server: RedisServer) -> None:
        self.client = server.client()
        # Replies must be as the server sends them.
        self.client.response_callbacks.clear()
        self.disruptions = 1
        self.is_away = False
        self.refused = ""
        """The name of a command that is refused; empty: none is."""
        self.bugs = 0
        """Rounds that fail in a way that none should."""
        self.clock: Callable[[], float] | None = None
        """The server's clock, in seconds, as its scripts see it; None: its own."""

    def do(self, asked: Command | Call) -> Reply:
        words = asked.words if isinstance(asked, Command) else self._words(asked)
        try:
            return self.client.execute_command(*words)  # type: ignore[no-untyped-call]
        except redis.ResponseError as error:
            return CommandRefusedError(str(error))

    def _words(self, call: Call) -> tuple[bytes | str | int, ...]:
        source = call.script.source
        if self.clock is not None:
            now = math.floor(self.clock() * 1000)
            shown = f"{{'{now // 1000}', '{now % 1000 * 1000}'}}"
            source = source.replace("redis.call('TIME')", shown)
        return "EVAL", source, len(call.keys), *call.keys, *call.arguments

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        del timeout
        if self.bugs:
            self.bugs -= 1
            raise RuntimeError("a bug")
        if self.is_away:
            return [UnreachableError("it is away")] * len(asked)
        return [
            CommandRefusedError(f"NOPERM no {self.refused}")
            if isinstance(one, Command) and one.words[0] == self.refused
            else self.do(one)
            for one in asked
        ]

    async def close(self) -> None:
        self.client.close()


class Edge:
    """A deployment's Redis over the product's connections. Close it at the end."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self.redis = self._runner.run(connect(RedisSettings(url)))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do what needs the connections."""
        return self._runner.run(work)

    def do(self, one: Command | Call) -> Reply:
        (reply,) = self.run(self.redis.run([one], timeout=10))
        return reply

    def ensure(self, names: KeyNames) -> None:
        self.run(ensure(self.redis, names))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.redis.close())
        self._runner.close()


async def ensure(redis: Redis, names: KeyNames) -> None:
    """Write the schema, or check the one that is there."""
    [reply] = await redis.run([ensure_call(names)], timeout=5)
    judge(names, good(reply))
