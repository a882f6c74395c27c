"""A real Sentinel set-up on loopback: a master, a replica, and three sentinels, of which two must agree."""

from tests.servers.redis_server import Binary, RedisServer, wait_for
from tests.servers.service import Service

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
