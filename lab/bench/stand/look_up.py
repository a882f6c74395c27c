"""Look-ups in process, and their times."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import Chain, Keyspace
from warmpath.indexer.ranks import Ingest
from warmpath.lab.bench.stand.made_up_fleet import BLOCK_SIZE, MODEL, VOCAB_SIZE

TOKENS = 10_000
"""Tokens of the prompt that is looked up, by default."""
BLOCKS = TOKENS // BLOCK_SIZE
HOLDERS = 8

ROOT = Keyspace(MODEL, BLOCK_SIZE).root()


@contextmanager
def no_collector() -> Iterator[None]:
    """Measure without the pauses of Python's garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def chain_of(packed: bytes, blocks: int) -> Chain:
    """Return the chain of a prompt's first blocks."""
    return Chain(ROOT, packed, BLOCK_SIZE, blocks)


def random_chain(tokens: int, seed: int) -> Chain:
    """Return the chain of a made-up prompt."""
    ids = np.random.default_rng(seed).integers(0, VOCAB_SIZE, tokens, dtype=np.uint32)
    return chain_of(ids.tobytes(), tokens // BLOCK_SIZE)


def scores(ingest: Ingest, packed: bytes, blocks: int) -> dict[RankName, int]:
    """Return the number of leading tokens of a prompt that each rank holds."""
    found = ingest.match(chain_of(packed, blocks), leading=True)
    return {
        RankName(place.pod, place.rank): stop * BLOCK_SIZE
        for place, start, stop in found
        if not start
    }


def microseconds(ways: dict[str, Callable[[int], object]], calls: int) -> dict[str, list[float]]:
    """Time each way `calls` times, in turn; return all times in microseconds, sorted."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with no_collector():
        for call in range(calls):
            for name, way in ways.items():
                begun = time.perf_counter()
                way(call)
                taken[name].append((time.perf_counter() - begun) * 1e6)
    return {name: sorted(times) for name, times in taken.items()}
