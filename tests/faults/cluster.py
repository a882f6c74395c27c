"""Faults of a Redis Cluster and of a master with sentinels: fail-overs, and slots that move."""

from functools import partial

from tests.faults.rig import Outcome, rig
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_sentinel import RedisSentinel
from tests.servers.redis_server import RedisServer, wait_for

MOVES = 12
"""Buckets that are moved to another node."""


async def master_killed(
    prefix: str, hold: float, cluster: RedisCluster, *, behind: bool = True
) -> Outcome:
    """Kill a master; writes that its replica does not have yet are lost."""
    async with rig(cluster.url, prefix) as made:
        await made.begin()
        master = cluster.master_of(made.names.bucket(0))
        replica = cluster.replica_of(master)
        if behind:
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


async def failed_over(prefix: str, hold: float, cluster: RedisCluster) -> Outcome:
    """Let a replica take over without loss."""
    async with rig(cluster.url, prefix) as made:
        await made.begin()
        master = cluster.master_of(made.names.bucket(1))
        await made.work(partial(cluster.fail_over, master))
        await made.lasts(hold)
        return await made.healed()


async def slots_moved(prefix: str, hold: float, cluster: RedisCluster) -> Outcome:
    """Move buckets and a record to another node; the old one replies ASK meanwhile, then MOVED."""
    async with rig(cluster.url, prefix) as made:
        await made.begin()
        keys = [made.names.record("a"), *(made.names.bucket(n) for n in range(MOVES))]
        for key in keys:
            slot = int(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key))
            source = cluster.master_of_slot(slot)
            target = next(
                node for node in cluster.nodes if cluster.is_master(node) and node is not source
            )
            await made.work(partial(cluster.open_migration, slot, target))
            await made.goes_on(10)
            await made.work(partial(cluster.move_keys, slot, source, target))
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
