"""Faults of servers: they die, hang, are emptied by hand or full, refuse commands, or fail over.

Where commands are refused over connections that stay, publishers cannot write, and cannot say so in Redis;
without a refusal to readers nothing tells them.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import redis

from tests.faults.rig import BEHIND, DEFAULT_LEASE, Outcome, Rig, alone, rig
from tests.servers.redis_cluster import RedisCluster, RedisSentinel
from tests.servers.redis_server import Binary, RedisServer, wait_for
from warmpath.indexer.shared.writer.machine import WriterState

TAIL = 20_000
"""Bytes at the end of the append-only file that a power cut loses."""
RELOADS = 3
MOVES = 12
"""Buckets that are moved to another node."""


async def killed(
    prefix: str, hold: float, *, binary: Binary = "redis", appendfsync: str = "", tail: int = 0
) -> Outcome:
    """Kill the server and restart it: empty, with its file, or without the file's end."""
    config = {"appendonly": "yes", "appendfsync": appendfsync} if appendfsync else {}
    async with alone(prefix, binary, **config) as (made, server):
        server.kill()
        if tail:
            [file] = server.folder.glob("appendonly.aof")
            size = file.stat().st_size
            assert size > 2 * tail
            with file.open("r+b") as opened:
                opened.truncate(size - tail)
        await made.doubted()
        await made.lasts(hold)
        await made.work(server.restart)
        return await made.healed()


async def stands_still(prefix: str, hold: float) -> Outcome:
    """Let the server hang, with its connections open."""
    async with alone(prefix) as (made, server):
        server.pause()
        try:
            await made.doubted()
            await made.lasts(hold)
        finally:
            server.resume()
        return await made.healed()


async def by_hand(prefix: str, hold: float, *, words: Callable[[Rig], tuple[str, ...]]) -> Outcome:
    """Remove by hand what `words` say."""
    async with alone(prefix) as (made, server):
        await made.work(partial(server.ask, *words(made)))
        made.over()
        await made.rewritten()
        await made.lasts(hold)
        return await made.healed()


def half_of_the_buckets(made: Rig) -> tuple[str, ...]:
    return "DEL", *(made.names.bucket(number) for number in range(0, made.names.buckets, 2))


async def reloaded(prefix: str, hold: float) -> Outcome:
    """Let the server go back to old data, again and again, with its connections open."""
    async with alone(prefix, lease=DEFAULT_LEASE) as (made, server):
        for _ in range(RELOADS):
            await made.work(partial(server.ask, "SAVE"))
            await made.lasts(BEHIND + hold)
            await made.work(partial(server.ask, "DEBUG", "RELOAD", "NOSAVE"))
            await made.rewritten()
            await made.exact()
        return await made.healed()


async def full(prefix: str, hold: float, *, binary: Binary = "redis") -> Outcome:
    """Reach the memory limit with eviction disabled."""
    async with alone(prefix, binary) as (made, server):
        await made.work(partial(server.ask, "CONFIG", "SET", "maxmemory", "1"))
        writers = [pod.publisher.writer for pod in made.pods.values()]
        await made.until(
            lambda: all(one.trouble.startswith("OOM") for one in writers), "it is felt"
        )
        await made.doubted()
        await made.lasts(hold)
        # Leases are still renewed, so nothing must be rewritten once there is room.
        assert {writer.state for writer in writers} == {WriterState.CURRENT}
        await made.work(partial(server.ask, "CONFIG", "SET", "maxmemory", "0"))
        return await made.healed()


async def evicting(prefix: str, hold: float) -> Outcome:
    """Reach the memory limit with eviction of any key, so that buckets vanish."""
    async with alone(prefix, maxmemory_policy="allkeys-lru") as (made, server):
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
    async with alone(prefix) as (made, server):
        now = int(server.ask("TIME")[0]) * 1000
        day = 86_400_000
        for wrong in (now - 2 * day, now + 2 * day):
            for name in made.pods:
                server.ask("HSET", made.names.pods, name, wrong)
            await made.lasts(hold)
        return await made.healed()


# Commands are refused

Refusal = Callable[[RedisServer], AbstractContextManager[None]]
"""Refuses commands while it is entered; it blocks."""


async def refused(
    prefix: str, hold: float, *, refusal: Refusal, binary: Binary = "redis"
) -> Outcome:
    """Refuse commands for longer than an exact answer may be old, though not for a whole lease."""
    with contextlib.ExitStack() as stack:
        async with alone(prefix, binary, lease=DEFAULT_LEASE) as (made, server):
            await made.work(lambda: stack.enter_context(refusal(server)))
            await made.lasts(BEHIND + hold)
            await made.work(stack.close)
            return await made.healed()


@contextmanager
def misconf(server: RedisServer) -> Iterator[None]:
    """Let a snapshot fail, as on a full disk; Redis then refuses writes by default."""
    (server.folder / "dump.rdb" / "in the way").mkdir(parents=True)
    server.ask("BGSAVE")
    wait_for(lambda: server.facts("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
    server.ask("CONFIG", "SET", "save", "3600 1")
    yield
    server.ask("CONFIG", "SET", "save", "")


@contextmanager
def asked(server: RedisServer, *, begins: str, ends: str) -> Iterator[None]:
    """Ask the server for a state in which it refuses."""
    server.ask(*begins.split())
    yield
    server.ask(*ends.split())


@contextmanager
def forbidden(server: RedisServer, *, what: str) -> Iterator[None]:
    """Take a right from the user that all parts are."""
    server.ask("ACL", "SETUSER", "admin", "on", "nopass", "+@all")
    with server.client(username="admin", password="any") as admin:
        admin.acl_setuser("default", enabled=True, categories=[], commands=[what])
        yield
        admin.acl_setuser("default", enabled=True, categories=["+@all"])


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """Run a script without end; after 0.1 s all other commands are refused."""
    server.ask("CONFIG", "SET", "lua-time-limit", "100")

    def run() -> None:
        with contextlib.suppress(redis.ResponseError):
            server.ask("EVAL", "while true do end", 0)

    running = threading.Thread(target=run)
    running.start()
    wait_for(partial(_is_busy, server))
    yield
    server.ask("SCRIPT", "KILL")
    running.join()


def _is_busy(server: RedisServer) -> bool:
    try:
        server.ask("PING")
    except redis.RedisError as error:
        return "BUSY" in str(error)
    return False


REFUSALS: dict[str, Refusal] = {
    "MISCONF": misconf,
    "NOREPLICAS": partial(
        asked,
        begins="CONFIG SET min-replicas-to-write 1",
        ends="CONFIG SET min-replicas-to-write 0",
    ),
    "READONLY": partial(asked, begins="REPLICAOF 127.0.0.1 1", ends="REPLICAOF NO ONE"),
    "CLIENT PAUSE WRITE": partial(
        asked, begins="CLIENT PAUSE 3600000 WRITE", ends="CLIENT UNPAUSE"
    ),
    "ACL -@write": partial(forbidden, what="-@write"),
    "ACL -hdel": partial(forbidden, what="-hdel"),
    # The others refuse writes alone.
    "BUSY": busy,
    "ACL -@all": partial(forbidden, what="-@all"),
}


# Clusters, and masters with sentinels


async def master_killed(prefix: str, hold: float) -> Outcome:
    """Kill a master of a cluster; writes that its replica does not have yet are lost."""
    with RedisCluster() as cluster:
        async with rig(cluster.url, prefix) as made:
            await made.begin()
            master = cluster.master_of(made.names.bucket(0))
            replica = cluster.replica_of(master)
            await made.work(partial(_cut_off, replica))
            await made.goes_on(100)
            await made.work(partial(cluster.kill_master, master))
            await made.doubted()
            await made.lasts(hold)
            await made.work(partial(replica.ask, "CONFIG", "SET", "masterauth", ""))
            await made.work(cluster.heal)
            return await made.healed()


def _cut_off(replica: RedisServer) -> None:
    """Disconnect a replica from its master for good, so that it falls behind."""
    replica.ask("CONFIG", "SET", "masterauth", "wrong")
    replica.ask("CLIENT", "KILL", "TYPE", "master")
    wait_for(
        lambda: replica.facts("INFO", "replication")["master_link_status"] == "down",
        what="a replica that is behind",
    )


async def failed_over(prefix: str, hold: float) -> Outcome:
    """Let a replica take over without loss."""
    with RedisCluster() as cluster:
        async with rig(cluster.url, prefix) as made:
            await made.begin()
            master = cluster.master_of(made.names.bucket(1))
            await made.work(partial(cluster.fail_over, master))
            await made.lasts(hold)
            return await made.healed()


async def slots_moved(prefix: str, hold: float) -> Outcome:
    """Move buckets and a record to another node; the old one replies ASK meanwhile, then MOVED."""
    with RedisCluster() as cluster:
        async with rig(cluster.url, prefix) as made:
            await made.begin()
            for key in [made.names.record("a"), *(made.names.bucket(n) for n in range(MOVES))]:
                slot = int(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key))
                source = cluster.master_of_slot(slot)
                target = next(
                    node for node in cluster.nodes if cluster.is_master(node) and node is not source
                )
                await made.work(partial(cluster.open_migration, slot, target))
                for _ in range(2):
                    await made.goes_on(10)
                    await made.work(partial(cluster.move_keys, slot, source, target))
                await made.work(partial(cluster.end_migration, slot, target))
            await made.lasts(hold)
            return await made.healed()


async def sentinel_failed_over(prefix: str, hold: float) -> Outcome:
    """Kill a master that sentinels watch."""
    with RedisSentinel() as sentinel:
        async with rig(sentinel.url, prefix) as made:
            await made.begin()
            await made.work(sentinel.kill_master)
            await made.doubted()
            await made.lasts(hold)
            return await made.healed()
