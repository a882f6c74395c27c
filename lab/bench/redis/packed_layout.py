"""The product's own layout for benchmarks: `indexer.shared` without a pod's record and log."""

from collections.abc import Sequence

import numpy as np

from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.record import SLOTS_OF_A_CLAIM
from warmpath.indexer.shared.query.buckets import LIFE
from warmpath.indexer.shared.query.lookup import rounds, stretches
from warmpath.indexer.shared.redis.command import Command
from warmpath.indexer.shared.writer.calls import apply_calls
from warmpath.lab.bench.redis.layout import Changes, Talk

TOKEN = 1
TTL_MS = 86_400_000


class PackedLayout:
    """Packed segments in buckets, which `apply.lua` writes with each pod's checkpoints."""

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
