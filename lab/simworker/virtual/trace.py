"""Recorded workloads: the requests' times and lengths, and the blocks that they share.

A line is `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}`, with an id for
each block of 512 tokens of the prompt, the last one partial; an id names all tokens up to its
block's end. Requests of one stamp are spread evenly up to the next stamp.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from warmpath.lab.simworker.sampler import open_text

TRACE_BLOCK_SIZE = 512
"""Tokens a block."""


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One request of a trace: when it arrives, its lengths in tokens, the ids of its blocks."""

    arrival: float
    """Seconds from the trace's beginning."""
    num_prompt_tokens: int
    max_tokens: int
    hash_ids: tuple[int, ...]

    def prompt_hashes(self) -> list[bytes]:
        """Return its ids as block hashes of 8 bytes, so that events carry the ids themselves."""
        return [number.to_bytes(8, "big") for number in self.hash_ids]


def read_trace(path: Path) -> list[TraceLine]:
    """Return a trace's requests. Raises ValueError, naming the line, if the file is not a trace."""
    lines = []
    with open_text(path) as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
                one = TraceLine(
                    line["timestamp"] / 1000,
                    max(1, line["input_length"]),
                    max(1, line["output_length"]),
                    tuple(line["hash_ids"]),
                )
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error!r}") from error
            if len(one.hash_ids) < one.num_prompt_tokens // TRACE_BLOCK_SIZE:
                raise ValueError(f"{path}, line {number}: hash_ids has too few blocks")
            lines.append(one)
    if not lines:
        raise ValueError(f"{path} is empty")
    return spread(lines)


def spread(lines: Sequence[TraceLine]) -> list[TraceLine]:
    """Return requests with those of one stamp spread up to the next; the last stamp's over a second."""
    stamps = [line.arrival for line in lines]
    found = []
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and stamps[end] == stamps[at]:
            end += 1
        gap = (stamps[end] - stamps[at] if end < len(lines) else 1.0) / (end - at)
        found += [
            replace(lines[number], arrival=stamps[at] + gap * (number - at))
            for number in range(at, end)
        ]
        at = end
    return found


def repeated(lines: Sequence[TraceLine], count: int) -> Iterator[TraceLine]:
    """Yield `count` requests: the trace again and again, each time with ids of its own."""
    span = lines[-1].arrival - lines[0].arrival
    span += span / max(len(lines) - 1, 1)
    ids = 1 + max((max(line.hash_ids, default=0) for line in lines), default=0)
    for number in range(count):
        turn, at = divmod(number, len(lines))
        line = lines[at]
        if turn:
            fresh = turn * ids
            line = replace(
                line,
                arrival=line.arrival + turn * span,
                hash_ids=tuple([one + fresh for one in line.hash_ids]),
            )
        yield line


def pooled_work(
    lines: Sequence[TraceLine], num_blocks: int, prefill: Callable[[int, int], float]
) -> float:
    """Return the seconds of prefill of all requests, in order, with one LRU cache of `num_blocks`.

    `prefill(new, cached)` returns the seconds of `new` tokens after `cached` ones.
    The study of policies measures loads by this sum.
    """
    prompts = ((line.hash_ids, line.num_prompt_tokens) for line in lines)
    return pooled(prompts, num_blocks, TRACE_BLOCK_SIZE, prefill)[1]


def pooled(
    prompts: Iterable[tuple[Sequence[int], int]],
    num_blocks: int,
    block_size: int,
    prefill: Callable[[int, int], float],
) -> tuple[int, float]:
    """Return the tokens found cached and the seconds of prefill, with one LRU cache for all prompts.

    A prompt is given by its blocks' names and its number of tokens. The cache has `num_blocks` blocks of
    `block_size` tokens. `prefill` is as in `pooled_work`.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    found = 0
    work = 0.0
    for names, tokens in prompts:
        hits = 0
        for name in names:
            if name not in cache:
                break
            hits += 1
        cached = min(hits * block_size, tokens - 1)
        found += cached
        work += prefill(tokens - cached, cached)
        for name in reversed(names):
            cache[name] = None
            cache.move_to_end(name)
        while len(cache) > num_blocks:
            cache.popitem(last=False)
    return found, work
