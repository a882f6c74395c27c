"""A soak of ingestion: `make soak`.

64 engines with true caches churn through millions of blocks while batches get lost, connections are
cut, engines restart and replays time out. Half of the engines answer replays. At the end every rank
with exact trust must hold the engine's blocks (after gaps without a replay, or once healed because new
blocks filled the cache: no other blocks), and memory must grow by less than 2 % in the last 35 %.
"""

import argparse
import gc
import json
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.indexer.consistent import check
from tests.indexer.memory_index import MemoryIndex
from tests.soak.engines import BLOCK, TrueCache
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import Keyspace, chain, pack_tokens
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.stream.replay import AskReplay
from warmpath.indexer.trust import Level

MOST_GROWTH = 0.02
"""Growth of memory in the last part from which on it counts as a leak."""
PREFIXES = 40
"""System prompts that requests of all engines share."""


class Engine:
    """One engine with a true cache, and a publisher."""

    def __init__(self, rng: Random, capacity: int) -> None:
        self.rng = rng
        self.cache = TrueCache(capacity)
        self.life = 0
        self.sequence = -1
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=200)

    def serve(self, prefix: list[int]) -> tuple[int, bytes]:
        """Serve a request: a shared prefix and a tail of its own."""
        blocks = self.rng.randint(1, 12)
        tokens = prefix + [self.rng.randrange(50_000) for _ in range(blocks * BLOCK)]
        root = Keyspace(model="m", block_size=BLOCK).root()
        keys = chain(root, pack_tokens(tokens), BLOCK)
        names = [key ^ (self.life * 0x9E3779B97F4A7C15 & (1 << 64) - 1) for key in keys]
        events = self.cache.compute(names, keys, tokens)
        self.sequence += 1
        stamp = self.life * 1e9 + self.sequence
        batch = (self.sequence, msgspec.msgpack.encode([stamp, events, 0]))
        self.buffer.append(batch)
        return batch

    def restart(self) -> None:
        self.life += 1
        self.cache.blocks.clear()
        self.buffer.clear()
        self.sequence = -1


@dataclass
class Line:
    engine: Engine
    rank: RankIngest
    rng: Random
    connected: bool = False
    asked: list[AskReplay] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rank.ask = self.asked.append

    def connect(self) -> None:
        self.connected = True
        self.rank.connected()
        self.answer()

    def cut(self) -> None:
        self.connected = False
        self.rank.disconnected()

    def answer(self, failing: float = 0.0) -> None:
        """Answer replays until none is asked for, or let one time out."""
        while self.asked:
            asked = self.asked.pop()
            if self.rng.random() < failing:
                self.rank.replay_failed(asked.ticket, "no answer")
                continue
            for sequence, payload in list(self.engine.buffer):
                if sequence >= asked.start:
                    self.rank.replayed(asked.ticket, sequence, payload)
            self.rank.replay_ended(asked.ticket)

    def step(self, prefix: list[int]) -> None:
        """Serve one request; now and then lose its batch or the connection, or restart the engine."""
        chance = self.rng.random()
        if chance < 0.0002:
            self.engine.restart()
            self.cut()
        elif chance < 0.001:
            self.cut()
        batch = self.engine.serve(prefix)
        if not self.connected:
            if self.rng.random() < 0.05:
                self.connect()
        elif chance > 0.005:
            self.rank.live("", *batch)
            self.answer(failing=0.01)


def rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(pods: int, blocks: int, capacity: int, seed: int) -> dict[str, object]:
    """Serve requests until `blocks` blocks were stored; return the figures."""
    rng = Random(seed)
    ingest = Ingest(
        MemoryIndex(), hash_seed="", pending_bytes=1 << 24, stale_after=1e9, clock=time.monotonic
    )
    lines = []
    for number in range(pods):
        source = RankSource(
            f"pod-{number}", 0, "m", vllm.decode, has_replay=number % 2 == 0, capacity=capacity
        )
        line = Line(Engine(Random(seed + number), capacity), ingest.add(source), rng)
        line.connect()
        lines.append(line)
    prefixes = [
        [rng.randrange(50_000) for _ in range(BLOCK * rng.randint(4, 40))] for _ in range(PREFIXES)
    ]
    memory = {}
    for goal in (0.3, 0.65, 1.0):
        # The first part fills every cache, so that what grows afterwards is a leak.
        while sum(line.rank.state.counts.stored_blocks for line in lines) < blocks * goal:
            for line in lines:
                line.step(rng.choice(prefixes))
            ingest.tick(50_000)
        memory[goal] = rss()
        print(f"{goal:.0%} of {blocks:,} blocks, {memory[goal] >> 20} MiB", file=sys.stderr)
    return {"growth": memory[1.0] / memory[0.65] - 1, **verdict(ingest, lines)}


def verdict(ingest: Ingest, lines: list[Line]) -> dict[str, object]:
    """Connect all ranks, and compare those with exact trust with their engines."""
    levels: dict[str, int] = {}
    wrong = 0
    for line in lines:
        if not line.connected:
            line.connect()
        line.rank.live("", *line.engine.serve([]))
        line.answer()
        levels[line.rank.trust.level] = levels.get(line.rank.trust.level, 0) + 1
        if line.rank.trust.level is not Level.EXACT:
            continue
        held = line.rank.state.held().get((Tier.GPU, 0), set())
        truth = set(line.engine.cache.blocks.values())
        equal = line.rank.stream.counts.gaps == 0 or line.rank.source.has_replay
        wrong += held != truth if equal and "stored since" not in line.rank.trust.reason else (
            not held <= truth
        )  # fmt: skip
    for _ in range(100):
        ingest.tick(1 << 20)
    check(ingest)
    counts = [line.rank.counts() for line in lines]
    return {
        "wrong": wrong,
        "trust": levels,
        **{
            name: sum(count[name] for count in counts)
            for name in ("stored_blocks", "removed_blocks", "gaps", "replays", "restarts")
        },
        "held_blocks": ingest.index.stats().entries,
    }


def passes(found: Mapping[str, Any]) -> bool:
    """Return whether no rank is wrong, some rank was compared, and memory did not grow."""
    # A rank that is not exact is not compared: without any, `wrong` would prove nothing.
    is_compared = found["trust"].get(Level.EXACT, 0) > 0
    return not found["wrong"] and is_compared and found["growth"] < MOST_GROWTH


def main() -> int:
    """Run the soak; return 1 unless it passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=3_000_000)
    parser.add_argument("--capacity", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    begun = time.monotonic()
    found = run(args.pods, args.blocks, args.capacity, args.seed)
    found["seconds"] = round(time.monotonic() - begun, 1)
    print(json.dumps(found, indent=1))
    return 0 if passes(found) else 1


if __name__ == "__main__":
    sys.exit(main())
