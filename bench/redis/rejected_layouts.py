"""Layouts of the shared index that were thought of, beside the one that was kept.

`python -m bench.redis.rejected_layouts [--quick]` measures them on Redis and on Valkey and prints a
table for `bench/RESULTS.md`. The one that was kept (`indexer.shared`) also writes its checkpoints, which
the others would need too.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bench.redis.content import fleet_of, prompts_of
from bench.redis.layout import Changes, Client, Layout, Talk
from bench.redis.llmd_layout import LlmdLayout
from bench.redis.packed_layout import PackedLayout
from bench.redis.rounds import (
    Figures,
    begin,
    bulk_rates,
    bytes_a_block,
    fill,
    look_up_times,
    server_times,
    step_rates,
)
from indexer.keys.segment import SEGMENT
from indexer.shared.layout.names import Names
from indexer.shared.redis.command import Call, Command, Script
from router.commands.local.redis_server import WHEELS, NoServerError, RedisServer

SET_BITS = Script(
    "bench_set_bits",
    """
    for i = 1, #KEYS do
        redis.call('SETBIT', KEYS[i], ARGV[1], ARGV[2])
        if ARGV[2] == '0' and redis.call('BITCOUNT', KEYS[i]) == 0 then redis.call('DEL', KEYS[i]) end
    end
    """,
)
SET_FIELDS = Script(
    "bench_set_fields",
    """
    local fields = {}
    for at = 1, #ARGV[3], 8 do fields[#fields + 1] = string.sub(ARGV[3], at, at + 7) end
    local olds = redis.call('HMGET', KEYS[1], unpack(fields))
    local pod, on = tonumber(ARGV[1]), ARGV[2] == '1'
    local place, mask = math.floor(pod / 8), bit.rshift(128, pod % 8)
    local news, gone = {}, {}
    for i, old in ipairs(olds) do
        old = old or ''
        if #old <= place then old = old .. string.rep('\\0', place + 1 - #old) end
        local byte = string.byte(old, place + 1)
        byte = on and bit.bor(byte, mask) or bit.band(byte, bit.bnot(mask))
        local new = string.sub(old, 1, place) .. string.char(byte) .. string.sub(old, place + 2)
        if string.find(new, '[^%z]') then
            news[#news + 1] = fields[i]
            news[#news + 1] = new
        else
            gone[#gone + 1] = fields[i]
        end
    end
    if #news > 0 then redis.call('HSET', KEYS[1], unpack(news)) end
    if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
    """,
)


class StringLayout:
    """A string per block: a bitmap of pods, read with an MGET for each bucket."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self._names = Names("strings")

    def begin(self) -> Talk[None]:
        """Write nothing."""
        yield ()

    def look_up(self, keys: Sequence[int]) -> Talk[dict[int, int]]:
        """Return how many leading blocks of a prompt each pod holds that holds the first."""
        asked: dict[int, list[bytes]] = {}
        places: dict[int, list[int]] = {}
        for start in range(0, len(keys), SEGMENT):
            bucket = self._names.bucket_of(keys[start])
            names = self._keys(bucket, keys[start : start + SEGMENT])
            asked.setdefault(bucket, []).extend(names)
            places.setdefault(bucket, []).extend(range(start, start + len(names)))
        replies = yield [Command(("MGET", *names)) for names in asked.values()]
        found: list[bytes | None] = [None] * len(keys)
        for spots, values in zip(places.values(), replies, strict=True):
            for spot, value in zip(spots, values, strict=True):
                found[spot] = value
        return _leading(found, self._pods)

    def add(self, pod: int, changes: Changes) -> Talk[None]:
        """Let a pod hold keys."""
        return self._set(pod, changes, "1")

    def remove(self, pod: int, changes: Changes) -> Talk[None]:
        """Let a pod no longer hold keys."""
        return self._set(pod, changes, "0")

    def _set(self, pod: int, changes: Changes, value: str) -> Talk[None]:
        named: dict[int, list[bytes]] = {}
        for segment, keys in changes.items():
            bucket = self._names.bucket_of(segment)
            named.setdefault(bucket, []).extend(self._keys(bucket, keys))
        yield [Call(SET_BITS, tuple(names), (pod, value)) for names in named.values()]  # type: ignore[arg-type]

    def _keys(self, bucket: int, keys: Sequence[int]) -> list[bytes]:
        prefix = self._names.bucket(bucket).encode()
        return [prefix + key.to_bytes(8, "little") for key in keys]


class SegmentHashLayout:
    """A hash per segment with a field per block: a bitmap of pods, read with an HMGET a segment."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self._names = Names("hashes")

    def begin(self) -> Talk[None]:
        """Write nothing."""
        yield ()

    def look_up(self, keys: Sequence[int]) -> Talk[dict[int, int]]:
        """Return how many leading blocks of a prompt each pod holds that holds the first."""
        replies = yield [
            Command(("HMGET", self._key(keys[start]), *_packed(keys[start : start + SEGMENT])))
            for start in range(0, len(keys), SEGMENT)
        ]
        return _leading([value for values in replies for value in values], self._pods)

    def add(self, pod: int, changes: Changes) -> Talk[None]:
        """Let a pod hold keys."""
        return self._set(pod, changes, "1")

    def remove(self, pod: int, changes: Changes) -> Talk[None]:
        """Let a pod no longer hold keys."""
        return self._set(pod, changes, "0")

    def _set(self, pod: int, changes: Changes, value: str) -> Talk[None]:
        yield [
            Call(SET_FIELDS, (self._key(segment),), (pod, value, b"".join(_packed(keys))))
            for segment, keys in changes.items()
        ]

    def _key(self, segment: int) -> str:
        return f"{self._names.bucket(self._names.bucket_of(segment))}{segment:x}"


def _packed(keys: Sequence[int]) -> list[bytes]:
    return [key.to_bytes(8, "little") for key in keys]


def _leading(values: Sequence[bytes | None], pods: int) -> dict[int, int]:
    """Return how many leading blocks each pod holds, given the blocks' bitmaps."""
    width = -(-pods // 8)
    rows = []
    for value in values:
        if value is None:
            break
        rows.append(value.ljust(width, b"\0"))
    bits = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), width)
    depths = np.unpackbits(np.bitwise_and.accumulate(bits), axis=1).sum(axis=0)
    return {int(pod): int(depths[pod]) for pod in np.flatnonzero(depths)}


LAYOUTS: Mapping[str, Callable[[int], Layout]] = {
    "a hash per block, a field per pod (llm-d)": LlmdLayout,
    "a bitmap string per block, MGET": StringLayout,
    "a hash per segment, a bitmap per block, HMGET": SegmentHashLayout,
    "packed segments (kept)": PackedLayout,
}
"""Of how many pods each is, is told when it is made."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure layouts of the shared index on every server that is there."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.redis.rejected_layouts", description=main.__doc__
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, small contents")
    quick = parser.parse_args(argv).quick
    for kind in WHEELS:
        try:
            server = RedisServer(kind)
        except NoServerError as error:
            print(f"{kind} is not measured: {error}")
            continue
        with server:
            print("\n".join(table(server, quick=quick)), end="\n\n")
    return 0


def table(server: RedisServer, *, quick: bool) -> list[str]:
    """Measure all layouts on a server, which is emptied; return a table in Markdown."""
    client = Client(server.client)
    lines = [f"| {server.version} | {' | '.join(LAYOUTS)} |", f"| --- |{' ---: |' * len(LAYOUTS)}"]
    for what, numbers in _rows(server, client, quick=quick):
        cells = (f"{numbers[name]:,.0f}" for name in LAYOUTS)
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return lines


def _rows(
    server: RedisServer, client: Client, *, quick: bool
) -> Iterator[tuple[str, Mapping[str, float]]]:
    calls, rounds, steps, part = (4, 1, 4, 20) if quick else (200, 5, 64, 1)
    for pods in (8, 64):
        layouts = begin(server, client, _fresh(pods))
        content = prompts_of(625, pods, 1 if quick else 8)
        fill(client, layouts, content)
        what = f"look-up of 625 blocks x {pods} pods"
        taken = look_up_times(client, layouts, content.prompts, calls)
        yield f"{what}: median us", _medians(taken)
        yield f"{what}: fastest us", {name: times[0] for name, times in taken.items()}
        own = server_times(server, client, layouts, content.prompts, calls)
        yield f"{what}: in the server, us", _medians(own)
    layouts = begin(server, client, _fresh(8))
    fill(client, layouts, prompts_of(625, 8, 1))
    added, removed = bulk_rates(client, layouts, 8, prompts=1 if quick else 2, rounds=rounds)
    yield "adding 625 blocks at a time, 8 pods: (block, pod)/s", _medians(added)
    yield "removing them: (block, pod)/s", _medians(removed)
    added, removed = step_rates(client, layouts, 8, wide=16, steps=steps, rounds=rounds)
    yield "adding steps of 16 segments x 1 block, 8 pods: (block, pod)/s", _medians(added)
    yield "removing them: (block, pod)/s", _medians(removed)
    for what, content in (
        ("8 holders", prompts_of(625, 8, 80 // part)),
        ("64 holders", prompts_of(625, 64, 20 // part)),
        ("chats under system prompts, 1-3 holders of 64", fleet_of(64, 2000 // part)),
    ):
        yield f"bytes a block, {what}", bytes_a_block(server, client, _fresh(content.pods), content)


def _fresh(pods: int) -> dict[str, Layout]:
    return {name: layout(pods) for name, layout in LAYOUTS.items()}


def _medians(figures: Figures) -> dict[str, float]:
    return {name: statistics.median(numbers) for name, numbers in figures.items()}


if __name__ == "__main__":
    raise SystemExit(main())
