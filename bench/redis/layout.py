"""What a layout of the shared index is to a benchmark: what it asks of Redis, without sockets."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import redis

from indexer.shared.redis.command import Call, Command, Redis, RefusedError, Reply, UnreachableError

Asked = Sequence[Command | Call]
Changes = Mapping[int, Sequence[int]]
"""Keys by the segment they lie in, of one pod."""

Result = TypeVar("Result")
Talk = Generator[Asked, list[Reply], Result]
"""Yields what is asked in one round trip, is sent the replies, and returns what they came to."""

TIMEOUT = 60.0


class Layout(Protocol):
    """One way to lay the index out. Pods are numbers from 0."""

    def begin(self) -> Talk[None]:
        """Write what has to be there before anything else."""

    def look_up(self, keys: Sequence[int]) -> Talk[dict[int, int]]:
        """Return how many leading blocks of a prompt each pod holds that holds the first."""

    def add(self, pod: int, changes: Changes) -> Talk[None]:
        """Let a pod hold keys."""

    def remove(self, pod: int, changes: Changes) -> Talk[None]:
        """Let a pod no longer hold keys."""


class Client:
    """A synchronous client: one connection, each round trip a pipeline."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._known: dict[str, bytes] = {}
        """Digests of the scripts that the server has, by name."""

    def run(self, talk: Talk[Result]) -> Result:
        """Hold a talk to its end. What Redis refuses raises redis.ResponseError."""
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
    """Hold a talk over the product's own connections. Raises what Redis or the way to it refuses."""
    try:
        asked = next(talk)
        while True:
            replies = await edge.run(asked, timeout=TIMEOUT) if asked else []
            for reply in replies:
                if isinstance(reply, RefusedError | UnreachableError):
                    raise reply
            asked = talk.send(replies)
    except StopIteration as end:
        result: Result = end.value
        return result
