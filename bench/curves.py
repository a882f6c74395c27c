"""How a look-up's time, and the writer's pauses, grow: `python -m bench.curves` prints tables.

Over the prompt's length, the pods that hold it, and the blocks in the index. Times are medians in
microseconds of one process on one machine; read them as shapes.
"""

import statistics
import time
from collections.abc import Iterable, Sequence

import numpy as np

from bench.fleet import BLOCK_SIZE
from bench.index import ROOT
from indexer.compiled.array_index import ArrayIndex
from indexer.key import Chain

CALLS = 200


def _chain(tokens: int, seed: int) -> Chain:
    ids = np.random.default_rng(seed).integers(0, 100_000, tokens, dtype=np.uint32)
    return Chain(ROOT, ids.tobytes(), BLOCK_SIZE, tokens // BLOCK_SIZE)


def _look_up(index: ArrayIndex, chains: Sequence[Chain]) -> tuple[float, float]:
    """Return the median and the p99 of matching prompts in turn."""
    taken = []
    for call in range(CALLS):
        begun = time.perf_counter()
        index.match(chains[call % len(chains)], leading=True)
        taken.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(taken), float(np.percentile(taken, 99))


def _filled(chains: Iterable[Chain], pods: int, *, apart: bool = False) -> ArrayIndex:
    """Return an index in which pods hold prompts; with `apart` each holds another share of each."""
    index = ArrayIndex(8 << 30)
    for chain in chains:
        keys = chain.keys()
        for slot in range(pods):
            index.add(slot, keys[: len(keys) * (slot + 1) // pods] if apart else keys)
    return index


def by_length() -> None:
    """Print the time by the prompt's length, held by 8 pods."""
    print("| tokens | median us | p99 us | us per 1,000 tokens |\n| ---: | ---: | ---: | ---: |")
    for tokens in (1_000, 4_000, 10_000, 32_000, 100_000, 240_000):
        chains = [_chain(tokens, seed) for seed in range(20)]
        median, slow = _look_up(_filled(chains, 8), chains)
        print(f"| {tokens:,} | {median:.0f} | {slow:.0f} | {median / tokens * 1000:.2f} |")


def by_pods() -> None:
    """Print the time by the pods that hold a prompt of 10,000 tokens."""
    print("| pods | all alike: median us | each another depth: median us |\n| ---: | ---: | ---: |")
    chains = [_chain(10_000, seed) for seed in range(20)]
    for pods in (4, 16, 64, 256, 1024):
        alike, _ = _look_up(_filled(chains, pods), chains)
        apart, _ = _look_up(_filled(chains, pods, apart=True), chains)
        print(f"| {pods:,} | {alike:.0f} | {apart:.0f} |")


def by_blocks() -> None:
    """Print times, bytes and the writer's pauses by the blocks in an index of a thousand slots."""
    print(
        "| blocks | median us | bytes a block | blocks/s added | worst step ms | sweep ms a step |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    rng = np.random.default_rng(1)
    chains = [_chain(10_000, seed) for seed in range(100)]
    for blocks in (100_000, 1_000_000, 10_000_000):
        index = _filled(chains, 8)
        worst, begun = 0.0, time.perf_counter()
        for number in range(blocks // 1000):
            keys = rng.integers(0, 1 << 63, 1000, dtype=np.uint64)
            step = time.perf_counter()
            index.add(number % 1000, keys)  # type: ignore[arg-type]
            worst = max(worst, time.perf_counter() - step)
        rate = blocks / (time.perf_counter() - begun)
        median, _ = _look_up(index, chains)
        stats = index.stats()
        index.drop(7)
        sweeps: list[float] = []
        done: set[int] = set()
        while 7 not in done:
            step = time.perf_counter()
            done.update(index.sweep(20_000))
            sweeps.append(time.perf_counter() - step)
        print(
            f"| {blocks:,} | {median:.0f} | {stats.bytes / stats.keys:.1f} | {rate:,.0f} "
            f"| {worst * 1e3:.0f} | {max(sweeps) * 1e3:.1f} |"
        )


if __name__ == "__main__":
    for table in (by_length, by_pods, by_blocks):
        assert table.__doc__
        print(f"\n{table.__doc__}\n")
        table()
