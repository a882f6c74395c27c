"""Layouts of the shared index in benchmarks, and the product's own: commands to Redis, no sockets."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import redis

from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import SLOTS_OF_A_CLAIM
from warmpath.indexer.shared.query.buckets import LIFE
from warmpath.indexer.shared.query.lookup import rounds, stretches
from warmpath.indexer.shared.redis.command import Call, Command, CommandFailedError, Redis, Reply
from warmpath.indexer.shared.writer.calls import apply_calls

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


TOKEN = 1
TTL_MS = 86_400_000


class PackedLayout:
    """`indexer.shared` without a pod's record and log.

    Packed segments in buckets, which `apply.lua` writes with each pod's checkpoints.
    """

    def __init__(self, pods: int) -> None:
        self._names = KeyNames("bench")
        self._slots = [(7_919 + pod) * SLOTS_OF_A_CLAIM for pod in range(pods)]
        self._pods = {slot: pod for pod, slot in enumerate(self._slots)}
        self._counts = [dict.fromkeys(range(self._names.buckets), 0) for _ in range(pods)]

    def begin(self) -> Talk[None]:
        """Write every pod's checkpoints, as a claim does."""
        for number in range(self._names.buckets):
            words: list[bytes | str] = ["HSET", self._names.bucket(number)]
            for pod in range(len(self._slots)):
                words += [checkpoint(_name(pod)), f"{TOKEN}:0"]
            yield [Command(tuple(words))]

    def look_up(self, keys: Sequence[int]) -> Talk[dict[int, int]]:
        values: dict[bytes, bytes | None] = {}
        bucket = self._names.bucket
        for wanted in rounds(self._names, keys, values):
            read = [Command(("HMGET", bucket(one), *of, *LIFE)) for one, of in wanted.items()]
            for fields, reply in zip(wanted.values(), (yield read), strict=True):
                values.update(zip(fields, reply, strict=False))
        found, _ = stretches(np.asarray(keys, "<u8"), values)
        return {self._pods[slot]: stop for slot, start, stop in found if not start}

    def add(self, pod: int, changes: Changes) -> Talk[None]:
        return self._apply(pod, {segment: (keys, ()) for segment, keys in changes.items()})

    def remove(self, pod: int, changes: Changes) -> Talk[None]:
        return self._apply(pod, {segment: ((), keys) for segment, keys in changes.items()})

    def _apply(
        self, pod: int, changes: dict[int, tuple[Sequence[int], Sequence[int]]]
    ) -> Talk[None]:
        slot, counts = self._slots[pod], self._counts[pod]
        calls = apply_calls(
            self._names,
            _name(pod),
            TOKEN,
            counts,
            {(segment, slot): both for segment, both in changes.items()},
            TTL_MS,
        )
        replies = yield [call for _, call in calls]
        for (number, _), (status, *_) in zip(calls, replies, strict=True):
            assert status == 1
            counts[number] += 1


def _name(pod: int) -> str:
    return f"pod-{pod}"
