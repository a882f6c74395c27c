"""The memory of prefix stores.

`python -m warmpath.lab.bench.speed.store_memory STORE` fills one and measures it.
The texts are conversations of 40 slices; ten conversations share their first 10. Four bytes make a
token, and every entry has four block keys.
"""

import argparse
import gc
import secrets

from warmpath.lab.bench.speed.memory import resident
from warmpath.prefixstore.cuts.slices import SLICE
from warmpath.prefixstore.store.contract import Entry, PrefixStore
from warmpath.prefixstore.store.lru import LruStore
from warmpath.prefixstore.store.trie import TrieStore

TEXTS = 6_000
SLICES = 40
SHARED = 10
KEYS = 4


def main() -> None:
    """Fill a store and print its memory."""
    parser = argparse.ArgumentParser(
        prog="python -m warmpath.lab.bench.speed.store_memory", description=__doc__
    )
    parser.add_argument("store", choices=("lru", "trie"))
    store: PrefixStore
    store = LruStore(1 << 40, b"") if parser.parse_args().store == "lru" else TrieStore(1 << 40)
    gc.collect()
    before = resident()
    for text in range(TEXTS):
        if text % 10 == 0:
            beginning = secrets.token_bytes(SHARED * SLICE)
        raw = beginning + secrets.token_bytes((SLICES - SHARED) * SLICE)
        slices = [raw[start : start + SLICE] for start in range(0, len(raw), SLICE)]
        entries = store.find(slices)
        entries += [Entry(bytes(SLICE), 0) for _ in slices[len(entries) :]]
        store.put(slices, entries)
        store.keep_keys(entries, (1, True), [bytes(8 * KEYS) for _ in entries])
    del entries, slices, raw, beginning
    gc.collect()
    grown = resident() - before
    held = store.stats.entries
    own = SLICE + 8 * KEYS
    print(f"{held:,} entries take {grown:,} bytes; the store estimates {store.stats.bytes:,}")
    print(f"{grown / held - own:.0f} bytes an entry beside tokens and keys")
    print(f"{grown / held / SLICE:.2f} bytes kept for each byte of text")


if __name__ == "__main__":
    main()
