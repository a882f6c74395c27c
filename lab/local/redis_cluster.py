"""A Redis Cluster on loopback for `warmpath fleet`: masters without replicas, no data on disk."""

import asyncio
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.exceptions import ConnectionError as NotThereError

from warmpath.cli.child import Child
from warmpath.lab.local.ports import HeldPorts
from warmpath.lab.local.redis_server import find_server

SLOTS = 16_384
BUS = 10_000
"""Offset from a node's port to its port for the cluster bus."""
START_SECONDS = 30.0


class RedisCluster:
    """Masters that share all slots evenly; `kind` is redis or valkey. Logs go to a folder."""

    def __init__(self, kind: str, masters: int, logs: Path) -> None:
        self._program = find_server(kind)
        self._logs = logs
        self._masters = masters
        self.nodes: list[Child] = []
        self.ports: list[int] = []
        self._held = HeldPorts()

    @property
    def url(self) -> str:
        return "redis-cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    async def start(self) -> None:
        """Start the servers and join them to a cluster. Raises TimeoutError."""
        self.ports = [self._held.take(BUS) for _ in range(self._masters)]
        for port in self.ports:
            name = f"redis-{port}"
            node = Child(name, log := self._logs / f"{name}.log")
            # It writes only its cluster configuration and its log, and may not answer yet.
            await node.launch(
                str(self._program),
                *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._logs)),
                *("--save", "", "--appendonly", "no", "--logfile", log.name),
                *("--cluster-enabled", "yes", "--cluster-config-file", f"{name}.nodes"),
            )
            self.nodes.append(node)
        async with asyncio.timeout(START_SECONDS):
            clients = [redis.asyncio.Redis(host="127.0.0.1", port=port) for port in self.ports]
            try:
                await self._join(clients)
            finally:
                for client in clients:
                    await client.aclose()

    async def _join(self, clients: list[Any]) -> None:
        for client in clients:
            await _answers(client)
        for number, client in enumerate(clients):
            first = number * SLOTS // len(clients)
            past = (number + 1) * SLOTS // len(clients)
            await client.execute_command("CLUSTER ADDSLOTS", *range(first, past))
            await client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for port in self.ports[1:]:
            await clients[0].execute_command("CLUSTER MEET", "127.0.0.1", port)
        for client in clients:
            await _is_whole(client)

    async def stop(self, within: float) -> None:
        """Stop the servers; kill them after `within` seconds."""
        await asyncio.gather(*(node.stop(within) for node in self.nodes))
        self._held.close()


async def _answers(client: Any) -> None:
    while True:
        try:
            await client.ping()
        except NotThereError:
            await asyncio.sleep(0.02)
        else:
            return


async def _is_whole(client: Any) -> None:
    while True:
        if (await client.execute_command("CLUSTER INFO"))["cluster_state"] == "ok":
            return
        await asyncio.sleep(0.05)
