"""One server of a Redis Cluster on loopback, as a child process."""

from pathlib import Path

from warmpath.lab.local.cluster import Child


class RedisNode(Child):
    """A node that writes only its cluster configuration and its log into `folder`."""

    def __init__(self, program: Path, port: int, folder: Path) -> None:
        name = f"redis-{port}"
        super().__init__(name, folder / f"{name}.log")
        self._words = (
            str(program),
            *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", "--logfile", self._log.name),
            *("--cluster-enabled", "yes", "--cluster-config-file", f"{name}.nodes"),
        )

    async def start(self) -> None:
        """Start the server without waiting until it answers."""
        await self.launch(*self._words)
