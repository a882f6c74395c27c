"""A Redis with this version's schema under a prefix."""

from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.schema import TIMEOUT, ensure_call, judge
from warmpath.indexer.shared.redis.command import Redis, good


async def ensure(redis: Redis, names: KeyNames, *, timeout: float = TIMEOUT) -> None:
    """Write the schema, or check the one that is there."""
    [reply] = await redis.run([ensure_call(names)], timeout=timeout)
    judge(names, good(reply))
