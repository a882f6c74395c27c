"""The pauses of a large index: while it is filled, while tables grow, while dropped slots are swept."""

import threading
import time
from collections.abc import Callable

import numpy as np

from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.index.contract import Index
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.ranks import SWEEP_BUDGET
from warmpath.lab.bench.figure import Figure
from warmpath.lab.bench.stand.look_up import HOLDERS, TOKENS, no_collector, random_chain

SLOTS = 1000
EACH = 1000
"""Blocks that are added in one call."""


def measure(*, quick: bool) -> list[Figure]:
    """Measure pauses while an index of a thousand slots grows, and while a slot is swept."""
    blocks = 1_000_000 if quick else 10_000_000
    begun = time.perf_counter()
    index = embedded_index(1 << 30)
    started = time.perf_counter() - begun
    prompt = random_chain(TOKENS, seed=2)
    for slot in range(HOLDERS):
        index.add(slot, prompt.keys())
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 1 << 63, (blocks // EACH, EACH), dtype=np.uint64)
    with no_collector():
        reader = Reader(index, prompt)
        begun = time.perf_counter()
        steps = [
            _seconds(lambda number=number: index.add(number % SLOTS, keys[number]))  # type: ignore[misc,arg-type]
            for number in range(len(keys))
        ]
        filled = time.perf_counter() - begun
        growing = reader.end()
        index.drop(SLOTS - 1)
        reader = Reader(index, prompt)
        sweeps: list[float] = []
        swept: set[int] = set()
        while not swept:
            sweeps.append(_seconds(lambda: swept.update(index.sweep(SWEEP_BUDGET))))
        sweeping = reader.end()
    size = f"{SLOTS:,} slots, {blocks:,} blocks"
    return [
        Figure("start-up of the index, compiled before", started * 1e3, "ms"),
        Figure(f"{size}: filled in", filled, "s"),
        Figure(f"{size}: longest step of the writer (a larger table)", max(steps) * 1e3, "ms"),
        Figure(f"{size}: longest look-up while they are added", growing * 1e3, "ms"),
        Figure(f"{size}: longest step of sweeping a dropped slot", max(sweeps) * 1e3, "ms"),
        Figure(f"{size}: longest look-up while it is swept", sweeping * 1e3, "ms"),
    ]


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


class Reader:
    """Looks a prompt up again and again in a thread of its own."""

    def __init__(self, index: Index, chain: Chain) -> None:
        self._index = index
        self._chain = chain
        self._ended = threading.Event()
        self._longest = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            taken = _seconds(lambda: self._index.match(self._chain))
            self._longest = max(self._longest, taken)
            time.sleep(0.0005)

    def end(self) -> float:
        """Stop; return the longest look-up, in seconds."""
        self._ended.set()
        self._thread.join()
        return self._longest
