"""Curves of look-ups, as tables and plots.

Usage: python -m warmpath.lab.bench.speed.curves [--plots FOLDER]

It measures look-ups over the prompt's length, over the pods that hold it and over the blocks in the
index; and the p99 of look-ups over the rate of events. Times are medians in microseconds of one
process on one machine; compare their shapes. Plots need matplotlib (`make bench` installs it).
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.keys.key import Chain
from warmpath.lab.bench.stand.look_up import HOLDERS, TOKENS, microseconds, random_chain
from warmpath.lab.bench.stand.pouring import slowest_beside

CALLS = 200


@dataclass(frozen=True, slots=True)
class Curve:
    """Rows of numbers; the first of each row is the x value."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[float, ...]]
    plotted: tuple[int, ...]


def _look_up(index: ArrayIndex, chains: Sequence[Chain]) -> tuple[float, float]:
    """Return the median and the p99 of matching prompts in turn."""
    taken = microseconds(
        {"match": lambda call: index.match(chains[call % len(chains)], leading=True)}, CALLS
    )["match"]
    return statistics.median(taken), float(np.percentile(taken, 99))


def _filled(chains: Iterable[Chain], pods: int, *, apart: bool = False) -> ArrayIndex:
    """Return an index in which pods hold prompts: all of each, or with `apart` more from pod to pod."""
    index = ArrayIndex(8 << 30)
    for chain in chains:
        keys = chain.keys()
        for slot in range(pods):
            index.add(slot, keys[: len(keys) * (slot + 1) // pods] if apart else keys)
    return index


def by_length() -> Curve:
    """Measure look-ups by the length of the prompt, which 8 pods hold."""
    rows = []
    for tokens in (1_000, 4_000, 10_000, 32_000, 100_000, 240_000):
        chains = [random_chain(tokens, seed) for seed in range(20)]
        rows.append((tokens, *_look_up(_filled(chains, HOLDERS), chains)))
    columns = ("tokens", "median us", "p99 us")
    return Curve("length", "By the prompt's length, held by 8 pods", columns, rows, (1, 2))


def by_pods() -> Curve:
    """Measure look-ups by the number of pods that hold a prompt of 10,000 tokens."""
    chains = [random_chain(TOKENS, seed) for seed in range(20)]
    rows = []
    for pods in (4, 16, 64, 256, 1024):
        alike, _ = _look_up(_filled(chains, pods), chains)
        apart, _ = _look_up(_filled(chains, pods, apart=True), chains)
        rows.append((pods, alike, apart))
    columns = ("pods", "all alike: median us", "each another depth: median us")
    return Curve("pods", "By the pods that hold 10,000 tokens", columns, rows, (1, 2))


def by_blocks() -> Curve:
    """Measure look-ups by the number of blocks in an index of a thousand slots."""
    rng = np.random.default_rng(1)
    chains = [random_chain(TOKENS, seed) for seed in range(100)]
    rows = []
    for blocks in (100_000, 1_000_000, 10_000_000):
        index = _filled(chains, HOLDERS)
        begun = time.perf_counter()
        for number in range(blocks // 1000):
            index.add(number % 1000, rng.integers(0, 1 << 63, 1000, dtype=np.uint64))  # type: ignore[arg-type]
        rate = blocks / (time.perf_counter() - begun)
        stats = index.stats()
        rows.append((blocks, *_look_up(index, chains), stats.bytes / stats.keys, rate))
    columns = ("blocks", "median us", "p99 us", "bytes a block", "blocks/s added")
    title = "By the blocks in an index of a thousand slots"
    return Curve("blocks", title, columns, rows, (1, 2))


def by_rate() -> Curve:
    """Measure scoring by the rate of the events that come meanwhile."""
    paces = (0, 10_000, 30_000, 100_000, 300_000, 1_000_000)
    slowest = slowest_beside(paces, rounds=5, seconds=1.0)
    rows = [(float(pace), slowest[pace]) for pace in paces]
    columns = ("blocks/s that pour in", "p99 us of scoring 10,000 tokens")
    return Curve("rate", "By the events that pour in meanwhile", columns, rows, (1,))


def _print(curve: Curve) -> None:
    print(f"\n## {curve.title}\n\n| {' | '.join(curve.columns)} |")
    print("| " + " | ".join("---:" for _ in curve.columns) + " |")
    for first, *rest in curve.rows:
        numbers = [f"{number:,.{1 if number < 30 else 0}f}" for number in rest]
        print(f"| {first:,.0f} | {' | '.join(numbers)} |")


def _plot(curve: Curve, folder: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415  for benchmarks only

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "warmpath"  # the same numbers make the same file
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for column in curve.plotted:
        points = [(row[0], row[column]) for row in curve.rows]
        axes.plot(*zip(*points, strict=True), marker="o", label=curve.columns[column])
    axes.set(title=curve.title, xlabel=curve.columns[0], yscale="log")
    if curve.rows[0][0]:
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=curve.rows[1][0])
        axes.set_xlim(left=0)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(folder / f"{curve.name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Measure, print and plot."""
    parser = argparse.ArgumentParser(
        prog="python -m warmpath.lab.bench.speed.curves", description=main.__doc__
    )
    parser.add_argument("--plots", type=Path, help="a folder for plots")
    folder: Path | None = parser.parse_args().plots
    for measure in (by_length, by_pods, by_blocks, by_rate):
        curve = measure()
        _print(curve)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            _plot(curve, folder)


if __name__ == "__main__":
    main()
