"""A real server that gets one command at a time; a test sets the state of the connections to it."""

import math
from collections.abc import Callable, Sequence

from tests.indexer.shared.server_time import source_at
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.redis.command import (
    Call,
    Command,
    CommandRefusedError,
    Reply,
    UnreachableError,
)


class AskedServer:
    """A Redis connection as a replica uses it. Tests set the public attributes."""

    def __init__(self, server: RedisServer) -> None:
        self.client = server.client()
        self.disruptions = 1
        self.is_away = False
        self.refused = ""
        """The name of a command that is refused; empty: none is."""
        self.clock: Callable[[], float] = lambda: 0.0
        """The server's own clock, seconds, as its scripts see it."""

    def do(self, asked: Command | Call) -> Reply:
        if isinstance(asked, Call):
            script = source_at(asked, math.floor(self.clock() * 1000))
            return self.client.eval(script, len(asked.keys), *asked.keys, *asked.arguments)
        with self.client.pipeline(transaction=False) as pipeline:
            pipeline.response_callbacks = {}
            return pipeline.execute_command(*asked.words).execute()[0]  # type: ignore[no-untyped-call]

    async def run(self, asked: Sequence[Command | Call], *, timeout: float) -> list[Reply]:
        del timeout
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
