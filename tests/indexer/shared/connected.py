"""The product's connections to Redis, for a test's length, and a command over them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from warmpath.indexer.shared.redis.client import RedisClient
from warmpath.indexer.shared.redis.command import Command, Redis, Reply
from warmpath.indexer.shared.redis.connect import RedisSettings, connect


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
