"""Redis for tests: a real server that gets one command at a time, hashes in memory, the product's connections."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

import redis

from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.schema import ensure_call, judge
from warmpath.indexer.shared.redis.client import RedisClient
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


class HeldRedis:
    """Hashes in memory; some cannot be reached, and in the place of some is an error."""

    def __init__(self) -> None:
        self.disruptions = 0
        self.hashes: dict[str, Any] = {}
        self.unreachable: set[str] = set()
        self.asked: list[Command] = []
        self.fails_in: int | None = None
        """After so many commands one fails."""

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        assert timeout >= 0
        return [self._reply(one) for one in asked]

    def _reply(self, one: Command | Call) -> Reply:
        assert isinstance(one, Command), "who reads writes nothing"
        self.asked.append(one)
        name, key, *words = one.words
        assert isinstance(key, str)
        fails = self.fails_in == 0
        if self.fails_in is not None:
            self.fails_in = None if fails else self.fails_in - 1
        if fails or key in self.unreachable:
            return UnreachableError("it is away")
        fields = self.hashes.get(key, {})
        if isinstance(fields, Exception):
            return fields
        if name == "HGETALL":
            return [word for pair in fields.items() for word in pair]
        if name == "DEL":
            return self.hashes.pop(key, None) is not None
        if name == "HSET":
            raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            self.hashes.setdefault(key, {}).update(zip(raw[::2], raw[1::2], strict=True))
            return 0
        if name == "HGET":
            return fields.get(words[0]) if isinstance(words[0], bytes) else None
        assert name == "HMGET"
        return [fields.get(word) for word in words if isinstance(word, bytes)]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def connected(url: str, **settings: str) -> AsyncIterator[RedisClient]:
    redis = await connect(RedisSettings(url, **settings))
    try:
        yield redis
    finally:
        await redis.close()


async def ask(redis: Redis, *words: bytes | str | int, timeout: float = 20) -> Reply:
    [reply] = await redis.run([Command(words)], timeout=timeout)
    return reply


async def answers(
    redis: Redis, *words: bytes | str | int, reply: bytes, timeout: float = 20
) -> None:
    """Ask again and again until this is the reply."""
    async with asyncio.timeout(60):
        while await ask(redis, *words, timeout=timeout) != reply:
            await asyncio.sleep(0.01)
