"""Records vLLM 0.9.2's own block manager and allocators under random operations.

    python tests/vllm/record_v0_blocks.py FOLDER tests/lab/simworker/v0/block_recording.jsonl.gz

FOLDER and the packages to install are as in `record_v0_scheduler.py`. A line of the recording is a
stream: its settings, and operations, each with its result. No hash is recorded, as Python's differ
from process to process. A stream ends early if 0.9.2 fails, or if its look-up is wrong
(`HoleError`); these are counted on stderr.
"""

import collections
import functools
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab" / "simworker" / "v0"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from block_stream import AllocatorStream, Api, ManagerStream, stream
from record_v0_scheduler import LoRARequest, join, stand_in, told, write

MANAGERS = 150
ALLOCATORS = 120
OPERATIONS = 80


class HoleError(Exception):
    """A block is cached but its ancestor is not: vLLM's bisection then counts blocks after the hole."""


def make_api() -> Api:
    """Return 0.9.2's classes."""
    from vllm import sequence
    from vllm.core.block import naive_block, prefix_caching_block
    from vllm.core.block.interfaces import BlockAllocator
    from vllm.core.block_manager import SelfAttnBlockSpaceManager
    from vllm.utils import Device

    allocator = prefix_caching_block.PrefixCachingBlockAllocator
    bisect = allocator.find_cached_blocks_prefix

    def find(self: Any, block_hashes: list[int]) -> list[int]:
        found = bisect(self, block_hashes)
        for block_hash in found:
            block_id = self._cached_blocks.get(block_hash)
            if block_id is None or not self.block_is_computed(block_id):
                raise HoleError
        return found

    allocator.find_cached_blocks_prefix = find

    return Api(
        SelfAttnBlockSpaceManager,
        functools.partial(naive_block.NaiveBlockAllocator, naive_block.NaiveBlock),
        allocator,
        prefix_caching_block.PrefixCachingBlock.hash_block_tokens,
        BlockAllocator.NoFreeBlocksError,
        Device,
        sequence.Sequence,
        sequence.SequenceGroup,
        sequence.SequenceStatus,
        sequence.Logprob,
        LoRARequest,
        join,
    )


class ManagerOperations:
    """Draws operations on a block manager."""

    def __init__(self, draw: random.Random, subject: ManagerStream) -> None:
        self.draw = draw
        self.subject = subject
        self.config = subject.config
        self.now = 0.0
        self.numbers = 0

    @staticmethod
    def config_of(draw: random.Random) -> dict[str, Any]:
        """Return settings; the pools are small, so that not everything fits."""
        block_size = draw.choice([1, 2, 4])
        return {
            "block_size": block_size,
            "num_gpu_blocks": draw.randint(8, 20),
            "num_cpu_blocks": draw.choice([0, 5, 12, 20]),
            "watermark": draw.choice([0.0, 0.01, 0.1, 0.2]),
            "sliding_window": draw.choice([None, None, None, 2 * block_size, 3]),
            "enable_caching": draw.random() < 0.65,
        }

    def next(self) -> list[Any]:
        """Return an operation."""
        draw, subject = self.draw, self.subject
        groups = [number for number in subject.groups if subject.running(number)]
        kind = draw.choices(
            ["admit", "extend", "fork", "free", "swap_out", "swap_in", "end_step", "reset"],
            [4, 9, 2, 4, 2, 3, 4, 0.3],
        )[0]
        if kind == "admit":
            return self._admit()
        if kind == "reset":
            return ["reset", draw.choice([None, "GPU", "CPU"])]
        if kind == "swap_in":
            swapped = [
                number
                for number, group in subject.groups.items()
                if group.get_seqs(status=subject.api.status.SWAPPED)
            ]
            if swapped:
                return ["swap_in", draw.choice(swapped), draw.choice([0, 0, 1, 3])]
        if kind in {"extend", "fork", "free", "swap_out"} and groups:
            return getattr(self, f"_{kind}")(draw.choice(groups))
        if not groups:
            return self._admit()
        self.now += draw.choice([0.0, 0.5, 1.0])
        return ["end_step", self.now]

    def _admit(self) -> list[Any]:
        draw, size = self.draw, self.config["block_size"]
        self.numbers += 1
        length = draw.randint(1, 6 * size) if draw.random() < 0.97 else 25 * size
        if self.config["sliding_window"] is not None:
            # 0.9.2 admits a longer prompt by its window's blocks, but allocates blocks for all of it.
            length = min(length, self.config["sliding_window"])
        # All prompts begin with zeros, so they share a prefix of random length.
        shared = draw.choice([0, length, draw.randint(0, length)])
        tokens = [0] * shared + [draw.randint(0, 1) for _ in range(length - shared)]
        count = draw.choice([1, 1, 1, 2, 3])
        return [
            "admit",
            self.numbers,
            tokens,
            count,
            draw.choice([0, 0, 0, 1, 2]),
            draw.choice([0, 0, 2]),
        ]

    def _extend(self, group: int) -> list[Any]:
        draw = self.draw
        sampled = [
            [draw.randint(0, 1) for _ in range(draw.choice([1, 1, 1, 3]))]
            for _ in self.subject.running(group)
        ]
        manager = self.subject.manager
        if self.config["sliding_window"] is not None and manager.get_num_free_gpu_blocks() < 8:
            # The first append takes the null block, for which 0.9.2 has not counted a block.
            return ["end_step", self.now]
        return ["extend", group, sampled, draw.choice([0, 0, 0, 1, 4])]

    def _fork(self, group: int) -> list[Any]:
        seqs = self.subject.running(group)
        if self.config["sliding_window"] is not None or len(self.subject.groups[group].seqs) > 8:
            # Forks go on using the blocks that a window has freed.
            return ["end_step", self.now]
        child = group * 10 + len(self.subject.groups[group].seqs)
        return ["fork", group, self.draw.choice(seqs).seq_id, child]

    def _free(self, group: int) -> list[Any]:
        return ["free", self.draw.choice(self.subject.running(group)).seq_id]

    def _swap_out(self, group: int) -> list[Any]:
        if self.config["sliding_window"] is not None:
            return ["end_step", self.now]  # The null block cannot be swapped.
        blocks = sum(
            len(self.subject.manager.get_block_table(seq)) for seq in self.subject.running(group)
        )
        if blocks > self.subject.manager.get_num_free_cpu_blocks() and self.draw.random() < 0.9:
            return ["end_step", self.now]
        return ["swap_out", group]


class AllocatorOperations:
    """Draws operations on two allocators."""

    def __init__(self, draw: random.Random, subject: AllocatorStream) -> None:
        self.draw = draw
        self.subject = subject
        self.now = 0.0
        self.numbers = 0
        self.home: dict[int, int] = {}
        """Chain -> position of the allocator that made its blocks."""

    @staticmethod
    def config_of(draw: random.Random) -> dict[str, Any]:
        """Return settings."""
        return {
            "num_blocks": draw.randint(3, 10),
            "block_size": draw.choice([1, 2, 3]),
            "enable_caching": draw.random() < 0.7,
        }

    def next(self) -> list[Any]:
        """Return an operation."""
        draw, subject = self.draw, self.subject
        size = subject.block_size
        kind = draw.choices(
            ["begin", "grow", "fork", "free_last", "free", "accessed", "computed", "find",
             "touched", "move", "common", "positions", "reset", "hit_rate"],
            [3, 12, 2, 1, 3, 2, 3, 3, 1, 1.5, 1, 0.1, 0.3, 0.5],
        )[0]  # fmt: skip
        where = draw.randint(0, 1)
        if kind == "begin" or not subject.chains:
            self.numbers += 1
            self.home[self.numbers] = where
            return ["begin", self.numbers, where]
        if kind in {"computed", "positions", "reset", "hit_rate"}:
            return [kind, where]
        if kind == "find":
            tokens = [draw.randint(0, 1) * draw.randint(0, 1) for _ in range(size * 4)]
            return ["find", where, tokens, draw.choice([None, None, 5])]
        chain = draw.choice(list(subject.chains))
        blocks = subject.chains[chain]
        if subject.where[chain] != self.home[chain]:
            # A block belongs to the allocator that made it: elsewhere it can neither grow nor be freed.
            free = subject.allocators[self.home[chain]].get_num_free_blocks()
            return ["move", chain] if free >= len(blocks) else ["touched", chain]
        if kind == "common":
            at = [each for each in subject.chains if not subject.where[each]]
            if at:
                return ["common", draw.sample(at, min(len(at), 3))]
        if kind == "accessed":
            self.now += draw.choice([0.0, 1.0])
            return ["accessed", chain, self.now]
        if kind == "free":
            return ["free", chain]
        if kind in {"touched", "free_last", "fork", "move"} and blocks:
            if kind == "fork":
                self.numbers += 1
                self.home[self.numbers] = subject.where[chain]
                return ["fork", chain, self.numbers]
            free = subject.allocators[1 - subject.where[chain]].get_num_free_blocks()
            if kind != "move" or free >= len(blocks):
                return [kind, chain]
        return self._grow(chain)

    def _grow(self, chain: int) -> list[Any]:
        draw, subject, size = self.draw, self.subject, self.subject.block_size
        blocks = subject.chains[chain]
        if blocks and not blocks[-1].is_full:
            # A copy on write that finds no block has already given up its own.
            if not subject.allocators[subject.where[chain]].get_num_free_blocks():
                return ["free", chain]
            room = blocks[-1].num_empty_slots
            return ["append", chain, [draw.randint(0, 1) for _ in range(draw.randint(1, room))]]
        extra_hash = draw.choice([None, None, None, 5])
        if draw.random() < 0.4:
            return ["mutable", chain, extra_hash]
        return ["immutable", chain, [draw.randint(0, 1) for _ in range(size)], extra_hash]


def record(
    api: Api,
    operations: type[ManagerOperations | AllocatorOperations],
    seed: int,
    failures: collections.Counter[str],
) -> dict[str, Any]:
    """Return one stream with the results of its operations."""
    draw = random.Random(seed)
    config = operations.config_of(draw)
    subject: Any = stream(api, config)
    source = operations(draw, subject)
    done: list[list[Any]] = []
    for _ in range(OPERATIONS):
        operation = source.next()
        try:
            done.append([operation, subject.apply(operation)])
        except Exception as error:  # noqa: BLE001 - whatever the engine fails with
            failures[told(error)] += 1
            break
    return {"config": config, "operations": done}


def main(folder: str, target: str) -> None:
    """Record, and print the failures of 0.9.2 on stderr."""
    stand_in(Path(folder))
    api = make_api()
    failures: collections.Counter[str] = collections.Counter()
    lines = [record(api, ManagerOperations, seed, failures) for seed in range(MANAGERS)]
    lines += [record(api, AllocatorOperations, seed, failures) for seed in range(ALLOCATORS)]
    write(lines, target)
    counts = collections.Counter(
        f"{operation[0]}{'' if result[0] else ' in vain'}"
        for line in lines
        for operation, result in line["operations"]
    )
    sys.stderr.write(json.dumps({"operations": counts.total(), **counts}, indent=1) + "\n")
    sys.stderr.write(
        json.dumps({"bytes": Path(target).stat().st_size, "failures of 0.9.2": failures}) + "\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
