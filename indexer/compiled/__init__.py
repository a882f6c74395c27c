"""The fast form of the index: flat arrays, and functions compiled by Numba that work on them.

Nothing here is needed: where Numba cannot be had, `indexer.index.memory` and `indexer.resolve.resolver`
do the same in pure Python, with the same keys. The design began with
`shared/bench/prototype-findings.md`.

Compiled functions hold no interpreter lock and check no bounds. Therefore everything that they are
given is made here: sizes are reserved before a call, and bytes that came from a socket are only ever
read by `scan`, which tests each read against the end; of those `roots` compares what `scan` found.
"""
