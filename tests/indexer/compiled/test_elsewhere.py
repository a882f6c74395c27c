"""An index that a process writes is read by another one, in the memory that both have."""

import os
import time
from collections.abc import Iterator
from functools import partial
from random import Random

import numpy as np
import pytest

from tests.indexer.killed import writing
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.elsewhere import IndexElsewhere
from warmpath.indexer.compiled.memory import WRITER, File, Memory, new_file
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.index.contract import Stretch

BYTES = 64 << 20
SLOTS = 300
"""More than an index has at first, so that its sets grow while they are read."""
SIZE = 200
"""Blocks that are added and removed together, in one step."""
CHUNKS = [list(range(1 + at * SIZE, 1 + (at + 1) * SIZE)) for at in range(250)]
ALL = [key for chunk in CHUNKS for key in chunk]
KINDS = 7
"""A slot holds only chunks of its kind."""


@pytest.fixture
def file() -> Iterator[File]:
    descriptor = new_file()
    yield File(descriptor)
    os.close(descriptor)


def _write(file: File, half: int, seed: int) -> None:
    memory = Memory(file, half)
    memory.clear()
    memory.head[WRITER] = os.getpid()
    memory.places[:SLOTS] = np.arange(SLOTS) + 1
    index = ArrayIndex(BYTES, memory=memory)
    index.arrays.keep_names()
    file.read(half)
    rng = Random(seed)
    held: set[tuple[int, int]] = set()
    while True:
        slot = rng.randrange(SLOTS)
        chunk = rng.randrange(slot % KINDS, len(CHUNKS), KINDS)
        if (slot, chunk) in held and rng.random() < 0.6:
            index.remove(slot, CHUNKS[chunk][::-1])
            held.remove((slot, chunk))
        elif (slot, chunk) not in held:
            index.add(slot, CHUNKS[chunk])
            held.add((slot, chunk))


def _slots(stretch: Stretch) -> tuple[int, int]:
    """Return a stretch's slot and its chunk."""
    slot, chunk = stretch.slot - 1, stretch.start // SIZE
    assert 0 <= slot < SLOTS
    return slot, chunk


def _check_whole(index: IndexElsewhere) -> int:
    """Check that whole chunks are found, at slots of their kind; return how many."""
    found = index.stretches(ALL)
    for one in found:
        assert one.start % SIZE == one.stop % SIZE == 0
        slot, chunk = _slots(one)
        assert one.stop - one.start == SIZE
        assert slot % KINDS == chunk % KINDS
    assert len(set(found)) == len(found)
    return len(found)


def _check_still(index: IndexElsewhere) -> None:
    """Check that all but the blocks of one chunk at one slot are whole, though the writer was killed."""
    parts = set()
    for one in index.stretches(ALL):
        slot, chunk = _slots(one)
        assert slot % KINDS == chunk % KINDS
        assert (one.stop - 1) // SIZE == chunk
        if one.stop - one.start < SIZE:
            parts.add((slot, chunk))
    assert len(parts) <= 1


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.deep)])
def test_no_reader_sees_a_block_half_written_or_is_stopped_by_a_writer_that_is_killed(
    file: File, kills: int
) -> None:
    index, rng = IndexElsewhere(file), Random(kills)
    assert index.stretches([1]) == []
    embedded_index(1 << 20)  # compiled before a process is made
    for seed in range(kills):
        half = seed % 2
        with writing(partial(_write, file, half, seed)):
            while file.current != half or not _check_whole(index):
                time.sleep(0)
            until = time.monotonic() + rng.uniform(0.05, 0.4)
            while time.monotonic() < until:
                _check_whole(index)
        _check_still(index)
