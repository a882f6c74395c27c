"""Faults of a single server: it dies, hangs, is emptied by hand, or is full.

Each fault lasts `hold` seconds and is then repaired; everything must heal.
"""

from functools import partial

from tests.faults.refusals import BEHIND
from tests.faults.rig import DEFAULT_LEASE, Outcome, Rig, rig
from tests.servers.redis_server import Binary, RedisServer
from warmpath.indexer.shared.writer.machine import WriterState

TAIL = 20_000
"""Bytes at the end of the append-only file that a power cut loses."""
RELOADS = 3


async def killed(
    prefix: str, hold: float, *, binary: Binary = "redis", appendfsync: str = "", tail: int = 0
) -> Outcome:
    """Kill the server and restart it: empty, with its file, or without the file's end."""
    config = {"appendonly": "yes", "appendfsync": appendfsync} if appendfsync else {}
    with RedisServer(binary, **config) as server:
        async with rig(server.url, prefix) as made:
            await made.begin()
            server.kill()
            if tail:
                _cut_off(server, tail)
            await made.doubted()
            await made.lasts(hold)
            await made.work(server.restart)
            return await made.healed()


def _cut_off(server: RedisServer, tail: int) -> None:
    [file] = server.folder.glob("appendonly.aof")
    size = file.stat().st_size
    assert size > 2 * tail
    with file.open("r+b") as opened:
        opened.truncate(size - tail)


async def stands_still(prefix: str, hold: float) -> Outcome:
    """Let the server hang, with its connections open."""
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            await made.begin()
            server.pause()
            try:
                await made.doubted()
                await made.lasts(hold)
            finally:
                server.resume()
            return await made.healed()


async def emptied(prefix: str, hold: float) -> Outcome:
    """Remove every key by hand, again and again."""
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            return await _by_hand(made, hold, server, ("FLUSHALL",))


async def record_deleted(prefix: str, hold: float) -> Outcome:
    """Delete one pod's record by hand."""
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            return await _by_hand(made, hold, server, ("DEL", made.names.record("a")))


async def buckets_deleted(prefix: str, hold: float) -> Outcome:
    """Delete half of the buckets by hand."""
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            half = [made.names.bucket(number) for number in range(0, made.names.buckets, 2)]
            return await _by_hand(made, hold, server, ("DEL", *half))


async def _by_hand(made: Rig, hold: float, server: RedisServer, words: tuple[str, ...]) -> Outcome:
    await made.begin()
    await made.work(partial(server.ask, *words))
    made.over()
    await made.rewritten()
    await made.lasts(hold)
    return await made.healed()


async def reloaded(prefix: str, hold: float) -> Outcome:
    """Let the server go back to old data, again and again, with its connections open."""
    with RedisServer() as server:
        async with rig(server.url, prefix, lease=DEFAULT_LEASE) as made:
            await made.begin()
            for _ in range(RELOADS):
                await made.work(partial(server.ask, "SAVE"))
                await made.lasts(BEHIND + hold)
                await made.work(partial(server.ask, "DEBUG", "RELOAD", "NOSAVE"))
                await made.rewritten()
                await made.exact()
            return await made.healed()


async def full(prefix: str, hold: float, *, binary: Binary = "redis") -> Outcome:
    """Reach the memory limit with eviction disabled."""
    with RedisServer(binary) as server:
        async with rig(server.url, prefix) as made:
            await made.begin()
            await made.work(partial(server.ask, "CONFIG", "SET", "maxmemory", "1"))
            writers = [pod.publisher.writer for pod in made.pods.values()]
            await made.until(
                lambda: all(writer.trouble.startswith("OOM") for writer in writers), "it is felt"
            )
            await made.doubted()
            await made.lasts(hold)
            # Leases are still renewed, so nothing must be rewritten once there is room.
            assert {writer.state for writer in writers} == {WriterState.CURRENT}
            await made.work(partial(server.ask, "CONFIG", "SET", "maxmemory", "0"))
            return await made.healed()


async def evicting(prefix: str, hold: float) -> Outcome:
    """Reach the memory limit with eviction of any key, so that buckets vanish."""
    with RedisServer(maxmemory_policy="allkeys-lru") as server:
        async with rig(server.url, prefix) as made:
            await made.begin()
            used = int(server.facts("INFO", "memory")["used_memory"])
            await made.work(partial(server.ask, "CONFIG", "SET", "maxmemory", str(used - 20_000)))
            await made.until(
                lambda: int(server.facts("INFO", "stats")["evicted_keys"]) > 5, "keys are evicted"
            )
            await made.rewritten()
            await made.lasts(hold)
            await made.work(partial(server.ask, "CONFIG", "SET", "maxmemory", "0"))
            return await made.healed()


async def forgotten(prefix: str, hold: float) -> Outcome:
    """Set the times of pods' last claims to a day ago, or to tomorrow."""
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            await made.begin()
            now = int(server.ask("TIME")[0]) * 1000
            day = 86_400_000
            for wrong in (now - 2 * day, now + 2 * day):
                for name in made.pods:
                    server.ask("HSET", made.names.pods, name, wrong)
                await made.lasts(hold)
            return await made.healed()
