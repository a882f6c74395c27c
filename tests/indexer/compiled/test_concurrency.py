"""Readers beside the writer: every answer was true at some moment between two steps."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random

import numpy as np
import pytest

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.followed import new_ingest, source
from tests.indexer.memory_index import MemoryIndex
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.compiled.arrays import STEP
from warmpath.indexer.index.contract import Index
from warmpath.indexer.keys.key import Chain, Keyspace, pack_tokens
from warmpath.lab.bench.stand.made_up_fleet import batches_of, prompt_of

BLOCKS = 4 * STEP
READERS = 2


@contextmanager
def reading(read: Callable[[], None]) -> Iterator[None]:
    """Read again and again in several threads meanwhile."""
    over = threading.Event()

    def read_on() -> None:
        while not over.is_set():
            read()

    readers = [threading.Thread(target=read_on) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        over.set()
        for reader in readers:
            reader.join()


@pytest.mark.random
@pytest.mark.parametrize("make", [MemoryIndex, ArrayIndex])
def test_a_chain_that_comes_and_goes_is_seen_as_a_beginning_of_it_or_an_end(
    make: type[Index],
) -> None:
    """A store is seen as a prefix of the chain, and a removal from the front as a suffix."""
    index = make()
    keys = np.random.default_rng(1).integers(0, 1 << 63, BLOCKS).tolist()
    index.add(0, keys)
    wrong: list[object] = []
    seen: set[tuple[int, int]] = set()

    def read() -> None:
        stretches = {one.slot: one for one in index.stretches(keys)}
        if (stretches[0].start, stretches[0].stop) != (0, BLOCKS):
            wrong.append(stretches[0])
        other = stretches.get(1)
        if other:
            seen.add((other.start, other.stop))
            if other.start != 0 and other.stop != BLOCKS:
                wrong.append(other)

    noise = Random(1)
    least = examples(60, desk=20)
    with reading(read):
        for number in count():
            # On a busy machine the readers may see nothing for as long as that.
            if number >= least and seen:
                break
            index.add(1, keys)
            index.add(2, [noise.getrandbits(63) for _ in range(500)])
            if number % 3:
                index.remove(1, keys)
            else:
                index.drop(1)
                while 1 not in index.sweep(1 << 20):
                    pass
    assert not wrong
    assert seen
    check(index)


def test_scores_stay_true_while_engines_store_and_remove() -> None:
    ingest = new_ingest()
    ranks = [ingest.add(source(f"p{n}", has_replay=False)) for n in range(4)]
    for rank in ranks:
        rank.connected()
    for rank in ranks[:2]:
        for payload in batches_of(1, BLOCKS, events=4, each=16):
            rank.live("", rank.stream.expected, payload)
    tokens = pack_tokens(prompt_of(1, BLOCKS))
    chain = Chain(Keyspace("m", 16).root(), tokens, 16, BLOCKS)
    wrong: list[object] = []

    def read() -> None:
        found = {place.pod: (start, stop) for place, start, stop in ingest.match(chain)}
        if found.get("p0") != (0, BLOCKS) or found.get("p1") != (0, BLOCKS):
            wrong.append(found)
        start, stop = found.get("p2", (0, 0))
        if start and stop != BLOCKS:
            wrong.append(found)

    with reading(read):
        for owner in range(15):
            for rank in ranks[2:]:
                # Each time by other names, so that tables of the rank's own come and go too.
                for payload in batches_of(1, BLOCKS, events=4, each=16, owner=owner, removes=True):
                    rank.live_many([("", rank.stream.expected, payload)])
            ingest.tick(1 << 16)
    assert not wrong
    check(ingest)
