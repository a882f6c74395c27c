"""Which form the embedded index has on this machine."""

import logging
import time

from indexer.index import Index
from indexer.key import Chain
from indexer.memory import MemoryIndex

log = logging.getLogger(__name__)


def embedded_index(max_bytes: int) -> Index:
    """Return an empty index of at most `max_bytes`, compiled where Numba can be had.

    Takes the time that compiling takes: half a second where it was done before, else up to a minute.
    """
    try:
        from indexer.compiled.array_index import ArrayIndex  # noqa: PLC0415  may be missing
    except ImportError as error:
        log.warning("the index runs in pure Python, about six times slower: %s", error)
        return MemoryIndex(max_bytes)
    begun = time.monotonic()
    warm_up(ArrayIndex(1 << 20))
    log.info("the compiled index was ready after %.1f s", time.monotonic() - begun)
    return ArrayIndex(max_bytes)


def warm_up(index: Index) -> None:
    """Use everything once."""
    chain = Chain(1, bytes(4 * 16 * 300), 16, 300)
    keys = chain.keys()
    index.add(0, keys)
    index.add(100, keys)
    index.match(chain)
    index.stretches(keys)
    index.remove(0, keys)
    index.drop(100)
    index.sweep(1 << 20)
    for start in range(0, 1 << 16, 1 << 10):
        index.add(1, range(start, start + (1 << 10)))
