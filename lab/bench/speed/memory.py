"""The memory of a block, by the number of pods that hold it: resident memory of a process of its own.

`python -m warmpath.lab.bench.speed.memory WHO HOLDERS KEYS NAMES` fills one index and prints the bytes
that it takes.
"""

import gc
import subprocess
import sys
from functools import cache, partial
from random import Random

import numpy as np

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.slot import SlotTable
from warmpath.indexer.resolve.change import Added
from warmpath.indexer.resolve.rank_slots import RankSlots
from warmpath.lab.bench import peer
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.made_up_fleet import (
    BLOCK_SIZE,
    batches_of,
    feed,
    new_ingest,
    prompt_of,
)

PROMPT = 625
SHAPES = (
    ("direct", 1, 1_000_000, "same", 0.5),
    ("direct", 8, 250_000, "same", 0.2),
    ("direct", 8, 250_000, "own", 0.75),
    ("direct", 64, 40_000, "own", 0.6),
    ("watch", 1, 1_000_000, "same", 0.3),
    ("watch", 8, 250_000, "same", 0.2),
    ("watch", 64, 40_000, "own", 0.1),
)
"""(how events come, holders, keys, the peer's engine hashes: same on all pods or own, goal)."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure bytes for each block and pod that holds it."""
    found = []
    theirs = cache(partial(bytes_of, "peer"))
    for who, holders, keys, names, goal in SHAPES:
        size = keys // 20 if quick else keys
        how = "watch mode" if who == "watch" else f"{names} engine hashes"
        ours = bytes_of(who, holders, size, names) or 0.0
        name = f"bytes a block and pod, {holders} holders, {how}"
        peers = theirs(holders, size, names)
        found.append(Figure(name, ours, "bytes", peers, "Dynamo's radix tree", goal=goal))
    return found


def bytes_of(who: str, holders: int, keys: int, names: str) -> float | None:
    """Return the bytes per block and pod in a new process; None for a `peer` that is missing."""
    if who == "peer" and not peer.is_installed():
        return None
    ended = subprocess.run(  # noqa: S603
        (sys.executable, "-m", "warmpath.lab.bench.speed.memory", who, str(holders), str(keys), names),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(ended.stdout) / (holders * (keys // PROMPT) * PROMPT)


def resident() -> int:
    """Return the resident memory of this process, bytes."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096


def main(who: str, holders: int, keys: int, names: str) -> None:
    """Fill an index and print the bytes that it takes."""
    fill = {"peer": _peer, "direct": _direct, "watch": _watch}[who]
    held = fill(holders, 1, names)  # work that is done once does not count
    before = resident()
    held = fill(holders, keys // PROMPT, names)
    print(resident() - before)
    del held


def _peer(holders: int, prompts: int, names: str) -> object:
    tree = peer.PeerIndex(BLOCK_SIZE)
    rng = Random(1)
    for seed in range(prompts):
        hashes = tree.hashes(prompt_of(seed, PROMPT))
        shared = [rng.getrandbits(63) for _ in hashes]
        for worker in range(holders):
            own = shared if names == "same" else [rng.getrandbits(63) for _ in hashes]
            tree.store(worker, hashes, own)
    return tree


def _direct(holders: int, prompts: int, names: str) -> object:
    ingest, ranks = new_ingest(embedded_index(4 << 30), holders)
    for seed in range(prompts):
        for number, rank in enumerate(ranks):
            owner = 0 if names == "same" else number
            feed(rank, batches_of(seed, PROMPT, events=1, each=PROMPT, owner=owner))
    return ingest


def _watch(holders: int, prompts: int, names: str) -> object:  # noqa: ARG001
    index = embedded_index(4 << 30)
    table = SlotTable()
    ranks = [RankSlots(f"pod-{number}", 0, index, table) for number in range(holders)]
    rng = np.random.default_rng(1)
    for _ in range(prompts):
        keys = rng.integers(0, 1 << 63, PROMPT).tolist()
        for rank in ranks:
            rank.apply(Added((Tier.GPU, 0), keys))
    return index


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
