"""The index: flat arrays, and functions compiled by Numba that work on them.

Publishers run without it: `indexer.resolve.resolver` follows ranks in pure Python.

Compiled functions hold no interpreter lock and check no bounds. Therefore Python makes every array
that it passes to them and reserves its room before the call. Only the folder `scan` reads bytes that
came from a socket, and tests each read against their end; `names.roots` compares texts that `scan`
found there.
"""
