"""The fast form of the index: flat arrays, and functions compiled by Numba that work on them.

Publishers and the library run without it: `indexer.resolve.resolver` and `indexer.index.memory` do the
same in pure Python.

Compiled functions hold no interpreter lock and check no bounds. Therefore Python makes every array
that it passes to them and reserves its room before the call. Only the folder `scan` reads bytes that
came from a socket, and tests each read against their end; `names.roots` compares texts that `scan`
found there.
"""
