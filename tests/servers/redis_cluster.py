"""A real Redis Cluster on loopback, three masters with a replica each; and a real Sentinel set-up.

The latter has a master, a replica, and three sentinels, of which two must agree.
"""

from typing import Any

from tests.servers.redis_server import Binary, RedisServer, wait_for
from tests.servers.service import Service

SLOTS = 16384


class RedisCluster(Service):
    """Masters first in `nodes`, then their replicas in the same order."""

    def __init__(
        self, masters: int = 3, replicas: int = 1, binary: Binary = "redis", **config: str | int
    ) -> None:
        self.masters = masters
        self.replicas = replicas
        options: dict[str, Any] = {
            "cluster_enabled": "yes", "cluster_config_file": "nodes.conf",
            "cluster_node_timeout": 1000, "repl_diskless_sync": "yes",
            "repl_diskless_sync_delay": 0, "cluster_replica_validity_factor": 0,
        }  # fmt: skip
        self.nodes = [
            RedisServer(binary, **(options | config)) for _ in range(masters * (1 + replicas))
        ]

    @property
    def url(self) -> str:
        return "redis-cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> None:
        """Start all nodes, have them meet and wait until every one of them serves."""
        for node in self.nodes:
            node.start()
        first = self.nodes[0]
        share = -(-SLOTS // self.masters)
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < self.masters:
                slots = range(number * share, min(SLOTS, (number + 1) * share))
                node.ask("CLUSTER", "ADDSLOTS", *slots)
            if node is not first:
                node.ask("CLUSTER", "MEET", "127.0.0.1", first.port)
        ids = [self.id_of(node) for node in self.nodes]
        for node in self.nodes:
            wait_for(lambda node=node: self._knows(node, ids), what="nodes that know each other")
        for number, node in enumerate(self.nodes[self.masters :]):
            wait_for(
                lambda node=node, number=number: (
                    node.ask("CLUSTER", "REPLICATE", ids[number % self.masters]) == b"OK"
                ),
                what="a replica",
            )
        self.wait_until_healthy()

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.close()

    @staticmethod
    def id_of(node: RedisServer) -> str:
        """Return a node's id in the cluster."""
        return bytes(node.ask("CLUSTER", "MYID")).decode()

    @staticmethod
    def _knows(node: RedisServer, ids: list[str]) -> bool:
        return set(ids) <= {part.split()[0] for part in _table(node).splitlines()}

    def is_master(self, node: RedisServer) -> bool:
        """Return whether a node says that it is a master."""
        return bool(node.raw("ROLE")[0] == b"master")

    def master_of(self, key: str) -> RedisServer:
        """Return the node that serves a key now."""
        slot = self.nodes_alive()[0].ask("CLUSTER", "KEYSLOT", key)
        return self.master_of_slot(int(slot))

    def master_of_slot(self, slot: int) -> RedisServer:
        """Return the node that serves a slot now."""
        for node in self.nodes_alive():
            if not self.is_master(node):
                continue
            for line in _table(node).splitlines():
                parts = line.split()
                if "myself" in parts[2] and any(_holds(part, slot) for part in parts[8:]):
                    return node
        raise LookupError(f"no node serves slot {slot}")

    def nodes_alive(self) -> list[RedisServer]:
        """Return the nodes that run."""
        return [node for node in self.nodes if node.is_running]

    def wait_until_healthy(self, seconds: float = 60.0) -> None:
        """Wait until each node says that all slots are served and each replica is connected."""

        def healthy() -> bool:
            for node in self.nodes:
                facts = node.facts("CLUSTER", "INFO")
                # Without full coverage a node is "ok" before it knows who serves the slots.
                if facts["cluster_state"] != "ok" or facts["cluster_slots_ok"] != str(SLOTS):
                    return False
                role = node.raw("ROLE")
                if role[0] == b"slave" and role[3] != b"connected":
                    return False
                if role[0] == b"master" and not role[2] and self.replicas:
                    return False
            return True

        wait_for(healthy, seconds, "a healthy cluster")

    def replica_of(self, master: RedisServer) -> RedisServer:
        """Return a node that follows a master."""
        wanted = self.id_of(master)
        for node in self.nodes_alive():
            for line in _table(node).splitlines():
                parts = line.split()
                if "myself" in parts[2] and parts[3] == wanted:
                    return node
        raise LookupError("it has no replica")

    def fail_over(self, master: RedisServer) -> RedisServer:
        """Have a replica take over in order (nothing is lost); return it."""
        replica = self.replica_of(master)
        wait_for(lambda: replica.ask("CLUSTER", "FAILOVER") == b"OK", what="a fail-over")
        wait_for(
            lambda: self.is_master(replica) and not self.is_master(master), what="a new master"
        )
        return replica

    def kill_master(self, master: RedisServer) -> RedisServer:
        """Kill a master, and return the replica that has taken over."""
        replica = self.replica_of(master)
        master.kill()
        wait_for(lambda: self.is_master(replica), 60, "a new master")
        wait_for(lambda: replica.facts("CLUSTER", "INFO")["cluster_state"] == "ok", 60, "its slots")
        return replica

    def open_migration(self, slot: int, target: RedisServer) -> RedisServer:
        """Begin to move a slot, with no key moved yet; return the node that has it now."""
        source = self.master_of_slot(slot)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move the keys of a slot that is being moved: from then on the source replies ASK."""
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "REPLACE", "KEYS", *keys)

    def end_migration(self, slot: int, target: RedisServer) -> None:
        """Set the slot's new owner on every node, the target first."""
        number = self.id_of(target)
        target.ask("CLUSTER", "SETSLOT", slot, "NODE", number)
        for node in self.nodes_alive():
            if node is not target and self.is_master(node):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", number)

    def migrate(self, slot: int, target: RedisServer) -> None:
        """Move a slot with its keys."""
        source = self.open_migration(slot, target)
        self.move_keys(slot, source, target)
        self.end_migration(slot, target)

    def flush(self) -> None:
        """Remove every key and script, on all masters."""
        for node in self.nodes_alive():
            if self.is_master(node):
                node.flush()

    def heal(self) -> None:
        """Restart nodes that were killed, and wait until all is well."""
        for node in self.nodes:
            if not node.is_running:
                node.restart()
        self.wait_until_healthy()


def _table(node: RedisServer) -> str:
    table: bytes = node.raw("CLUSTER", "NODES")
    return table.decode()


def _holds(part: str, slot: int) -> bool:
    if part.startswith("["):
        return False
    first, _, last = part.partition("-")
    return int(first) <= slot <= int(last or first)


NAME = "warm"


class RedisSentinel(Service):
    """`servers` are the first master and its replica; roles change."""

    def __init__(self, binary: Binary = "redis", **config: str | int) -> None:
        self._binary: Binary = binary
        self._config = config
        diskless: dict[str, str | int] = {
            "repl_diskless_sync": "yes",
            "repl_diskless_sync_delay": 0,
        }
        self.servers = [RedisServer(binary, **(diskless | config)) for _ in range(2)]
        self.sentinels: list[RedisServer] = []

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis-sentinel://{places}/{NAME}"

    def start(self) -> None:
        """Start all, and wait until the sentinels know each other and the replica."""
        master, replica = self.servers
        master.start()
        replica.start()
        replica.ask("REPLICAOF", "127.0.0.1", master.port)
        watch = (
            f"sentinel monitor {NAME} 127.0.0.1 {master.port} 2\n"
            f"sentinel down-after-milliseconds {NAME} 500\n"
            f"sentinel failover-timeout {NAME} 3000\n"
        )
        self.sentinels = [RedisServer(self._binary, sentinel=watch) for _ in range(3)]
        for sentinel in self.sentinels:
            sentinel.start()
        self.wait_until_healthy()

    def wait_until_healthy(self, seconds: float = 60.0) -> None:
        """Wait until each sentinel could lead a fail-over, and the replica is in step."""

        def healthy() -> bool:
            for sentinel in self.sentinels:
                state = sentinel.facts("SENTINEL", "MASTER", NAME)
                if (state["num-other-sentinels"], state["num-slaves"]) != ("2", "1"):
                    return False
                if state["flags"] != "master":
                    return False
                [replica] = sentinel.raw("SENTINEL", "REPLICAS", NAME)
                facts = dict(zip(replica[::2], replica[1::2], strict=True))
                if (facts[b"flags"], facts[b"master-link-status"]) != (b"slave", b"ok"):
                    return False
            return True

        wait_for(healthy, seconds, "sentinels that know of all")

    def master(self) -> RedisServer:
        """Return the server that most sentinels call master."""
        ports = [
            int(sentinel.raw("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1])
            for sentinel in self.sentinels
        ]
        port = max(ports, key=ports.count)
        return next(server for server in self.servers if server.port == port)

    def fail_over(self) -> RedisServer:
        """Have the replica take over with the master alive; return the new master."""
        old = self.master()
        wait_for(
            lambda: self.sentinels[0].raw("SENTINEL", "FAILOVER", NAME) == b"OK", what="a fail-over"
        )
        return self._new_master(old)

    def kill_master(self) -> RedisServer:
        """Kill the master; return the server that has taken over."""
        old = self.master()
        old.kill()
        return self._new_master(old)

    def _new_master(self, old: RedisServer) -> RedisServer:
        def switched() -> RedisServer | None:
            master = self.master()
            return master if master is not old and master.raw("ROLE")[0] == b"master" else None

        master: RedisServer = wait_for(switched, 60, "a new master")
        return master

    def close(self) -> None:
        """End all."""
        for server in [*self.sentinels, *self.servers]:
            server.close()
