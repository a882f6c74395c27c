"""The contract of a layout of the shared index in benchmarks: its commands to Redis, without sockets."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import redis

from warmpath.indexer.shared.redis.command import Call, Command, CommandFailedError, Redis, Reply

Asked = Sequence[Command | Call]
Changes = Mapping[int, Sequence[int]]
"""Segment -> keys in it, of one pod."""

Result = TypeVar("Result")
Talk = Generator[Asked, list[Reply], Result]
"""Yields the commands of a round trip, receives the replies, and returns the result."""

TIMEOUT = 60.0


class Layout(Protocol):
    """One layout of the index. Pods are numbers from 0."""

    def begin(self) -> Talk[None]:
        """Write the records that the layout needs before all others."""

    def look_up(self, keys: Sequence[int]) -> Talk[dict[int, int]]:
        """Return the number of leading blocks of a prompt for each pod that holds the first."""

    def add(self, pod: int, changes: Changes) -> Talk[None]:
        """Add keys of a pod."""

    def remove(self, pod: int, changes: Changes) -> Talk[None]:
        """Remove keys of a pod."""


class PipelineClient:
    """A synchronous client with one connection; each round trip is a pipeline."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._known: dict[str, bytes] = {}
        """Script's name -> its digest, for scripts that the server has."""

    def run(self, talk: Talk[Result]) -> Result:
        """Run a talk to its end. Raises redis.ResponseError if Redis refuses a command."""
        try:
            asked = next(talk)
            while True:
                asked = talk.send(self._replies(asked))
        except StopIteration as end:
            result: Result = end.value
            return result

    def _replies(self, asked: Asked) -> list[Reply]:
        if not asked:
            return []
        pipeline: Any = self._client.pipeline(transaction=False)
        for one in asked:
            if isinstance(one, Command):
                pipeline.execute_command(*one.words)
            else:
                pipeline.execute_command(
                    "EVALSHA", self._digest(one), len(one.keys), *one.keys, *one.arguments
                )
        replies: list[Reply] = pipeline.execute()
        return replies

    def _digest(self, call: Call) -> bytes:
        known = self._known.get(call.script.name)
        if known is None:
            known = self._client.execute_command("SCRIPT LOAD", call.script.source)
            self._known[call.script.name] = known
        return known


async def run_on(edge: Redis, talk: Talk[Result]) -> Result:
    """Run a talk over the product's own connections. Raises errors of Redis and of the connection."""
    try:
        asked = next(talk)
        while True:
            replies = await edge.run(asked, timeout=TIMEOUT) if asked else []
            for reply in replies:
                if isinstance(reply, CommandFailedError):
                    raise reply
            asked = talk.send(replies)
    except StopIteration as end:
        result: Result = end.value
        return result
