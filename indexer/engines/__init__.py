"""One codec per engine, from wire bytes to the neutral events of `event`; no sockets and no index.

A new engine is a file here and an entry in `table`.
"""
